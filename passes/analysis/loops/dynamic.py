"""Loops of a dynamic trip count: they count from zero to a computed bound, or until they end.

Two such loops are a pair only where the second has the trip count that the first reached. The
second then reads each stack of the first at an index that was written. XLA clamps an index beyond
the end of a stack to its last slice, in all stacks of one length alike: slices at one index are
always of one iteration, though beyond the end it is not the one of the counter.
"""

from __future__ import annotations

from jax.extend.mlir import ir

from ...ir.shardings import has_shardings
from ...ir.values import constant_int, defining_op
from ..constants import made_value
from .counted import (
    DEEPEST_INDEX,
    CountedLoop,
    counts_up,
    invariant_carries,
    stack_length,
    stacks_of,
    upward_count,
)


def dynamic_loops(block: ir.Block) -> list[CountedLoop]:
    """Returns a block's loops of a dynamic trip count, in order, those in inner blocks left out."""
    found = (_dynamic_loop(view.operation) for view in block.operations)
    return [loop for loop in found if loop is not None]


def _dynamic_loop(op: ir.Operation) -> CountedLoop | None:
    if op.name != "stablehlo.while" or has_shardings(op):
        return None
    counted = upward_count(op)
    if counted is not None:
        counter, bound = counted
        if constant_int(bound) is not None:
            return None  # a counted loop
        return _with_stacks(op, counter, made_value(bound))
    for number in range(len(op.operands)):
        if _is_integer(op.operands[number]) and counts_up(op, number):
            loop = _with_stacks(op, number, None)
            if loop.stacks:
                return loop
    return None


def _is_integer(value: ir.Value) -> bool:
    type_ = value.type
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.rank == 0
        and isinstance(type_.element_type, ir.IntegerType)
    )


def _with_stacks(op: ir.Operation, counter: int, bound: ir.Value | None) -> CountedLoop:
    """Returns the loop with the stacks that are as long as its first."""
    variable = op.regions[1].blocks[0].arguments[counter]

    def affine_of(index: ir.Value) -> tuple[int, int] | None:
        return (1, 0) if _linear(index, variable, bound) == _UPWARD else None

    stacks = stacks_of(op, affine_of)
    length = stack_length(stacks[0]) if stacks else 0
    alike = tuple(stack for stack in stacks if stack_length(stack) == length)
    return CountedLoop(op, counter, length, invariant_carries(op), alike, True, bound)


def same_count(forward: CountedLoop, backward: CountedLoop) -> bool:
    """Whether a loop has the trip count that another one reached."""
    bound = backward.bound
    if bound is None:
        return False
    if bound == forward.op.results[forward.counter]:
        return True
    return forward.bound is not None and bound == forward.bound


_Linear = tuple[int, int, int]
"""Factors of a loop's counter and of its bound, and an offset."""

_UPWARD, _DOWNWARD = (1, 0, 0), (-1, 1, -1)
"""The counter, and the index that counts back from the last iteration: neither is negative."""


def direction(index: ir.Value, loop: CountedLoop) -> int | None:
    """Returns 1 for a loop's counter, -1 for an index that counts back from the last, else None."""
    found = _linear(index, loop.body.arguments[loop.counter], loop.bound)
    return {_UPWARD: 1, _DOWNWARD: -1}.get(found) if found is not None else None


def _linear(
    value: ir.Value, counter: ir.Value, bound: ir.Value | None, depth: int = DEEPEST_INDEX
) -> _Linear | None:
    """Returns an index as factors of counter and bound; None where it is not linear in them."""
    if value == counter:
        return _UPWARD
    value = made_value(value)
    if bound is not None and value == bound:
        return 0, 1, 0
    constant = constant_int(value)
    if constant is not None:
        return 0, 0, constant
    op = defining_op(value)
    if op is None or not depth:
        return None
    if op.name == "stablehlo.convert" and op.operands[0].type == value.type:
        return _linear(op.operands[0], counter, bound, depth - 1)  # JAX writes converts to the same
    if op.name == "stablehlo.select":
        return _not_negative(op, counter, bound, depth)
    sign = {"stablehlo.add": 1, "stablehlo.subtract": -1}.get(op.name)
    if sign is None:
        return None
    first, second = (_linear(operand, counter, bound, depth - 1) for operand in op.operands)
    if first is None or second is None:
        return None
    return (first[0] + sign * second[0], first[1] + sign * second[1], first[2] + sign * second[2])


def _not_negative(
    select: ir.Operation, counter: ir.Value, bound: ir.Value | None, depth: int
) -> _Linear | None:
    """Returns the index in ``index < 0 ? index + length : index``, where it is never below zero."""
    condition, _, index = select.operands
    compare = defining_op(condition)
    if compare is None or compare.name != "stablehlo.compare":
        return None
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    if compare.operands[0] != index or constant_int(made_value(compare.operands[1])) != 0:
        return None
    found = _linear(index, counter, bound, depth - 1)
    return found if found in (_UPWARD, _DOWNWARD) else None
