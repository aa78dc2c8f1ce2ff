"""Loops that count from zero, nobody knows how far: to a bound that is computed, or until they end.

A pair of such loops can be told only where the second counts to where the first got. What the
first stacks at its counter, the second then reads back at a place that was written. Beyond the end
of a stack both are held to its last slice, for all stacks of one length alike: the slices at one
place are always of one iteration, though it need not be the one that the counter says.
"""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.analysis.constants import made_value
from hloom.passes.analysis.loops.counted import (
    CountedLoop,
    constant_int,
    counts_up,
    defining_op,
    has_attributes_by_carry,
    invariant_carries,
    stack_length,
    stacks_of,
    upward_count,
)

_DEEPEST_INDEX = 8
"""How many operations of index arithmetic are looked through."""


def open_loops(block: ir.Block) -> list[CountedLoop]:
    """The open loops that stand directly in a block, in order."""
    found = (_open_loop(view.operation) for view in block.operations)
    return [loop for loop in found if loop is not None]


def _open_loop(op: ir.Operation) -> CountedLoop | None:
    if op.name != "stablehlo.while" or has_attributes_by_carry(op):
        return None
    counted = upward_count(op)
    if counted is not None:
        counter, bound = counted
        if constant_int(bound) is not None:
            return None  # it is a counted one
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
    """The loop with its stacks, all of the length of the first."""
    variable = op.regions[1].blocks[0].arguments[counter]

    def line_of(index: ir.Value) -> tuple[int, int] | None:
        return (1, 0) if _linear(index, variable, bound) == _UPWARD else None

    stacks = stacks_of(op, line_of)
    length = stack_length(stacks[0]) if stacks else 0
    alike = tuple(stack for stack in stacks if stack_length(stack) == length)
    return CountedLoop(op, counter, length, invariant_carries(op), alike, True, bound)


def same_count(forward: CountedLoop, backward: CountedLoop) -> bool:
    """Whether an open loop counts just as far as another one did."""
    bound = backward.bound
    if bound is None:
        return False
    if bound == forward.op.results[forward.counter]:
        return True
    return forward.bound is not None and bound == forward.bound


_Linear = tuple[int, int, int]
"""Factors of a loop's counter and of its bound, and an offset."""

_UPWARD, _DOWNWARD = (1, 0, 0), (-1, 1, -1)
"""A place that is the counter, and one that counts back from the last: neither is negative."""


def direction(index: ir.Value, loop: CountedLoop) -> int | None:
    """1 where an index of an open loop's body is its counter, -1 where it counts back from the
    last to zero; None where it is neither.
    """
    line = _linear(index, loop.body.arguments[loop.counter], loop.bound)
    return {_UPWARD: 1, _DOWNWARD: -1}.get(line) if line is not None else None


def _linear(
    value: ir.Value, counter: ir.Value, bound: ir.Value | None, depth: int = _DEEPEST_INDEX
) -> _Linear | None:
    """An index as a sum; None where it is not one."""
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
    return (
        first[0] + sign * second[0],
        first[1] + sign * second[1],
        first[2] + sign * second[2],
    )


def _not_negative(
    select: ir.Operation, counter: ir.Value, bound: ir.Value | None, depth: int
) -> _Linear | None:
    """The index in ``index < 0 ? index + length : index``, where it never is below zero."""
    condition, _, index = select.operands
    compare = defining_op(condition)
    if compare is None or compare.name != "stablehlo.compare":
        return None
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    if compare.operands[0] != index or constant_int(made_value(compare.operands[1])) != 0:
        return None
    line = _linear(index, counter, bound, depth - 1)
    return line if line in (_UPWARD, _DOWNWARD) else None
