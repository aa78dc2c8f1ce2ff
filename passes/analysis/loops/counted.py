"""Counted loops: ``stablehlo.while`` operations of a constant trip count, as in JAX's ``scan``.

A scan counts from 0 to its length in one integer carry. An operand that the body returns unchanged
is invariant. A stacked output is a carry that the body only writes, one slice an iteration, with
``dynamic_update_slice`` at the counter, or counting down from the end in a reversed scan. A stack
that is read is an invariant operand, or a captured value, of which the body reads slices alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir.shardings import has_shardings
from ...ir.values import constant_int, defining_op, is_read, shape_of
from ...ir.walk import ancestors, terminator


@dataclass(frozen=True)
class StackedOutput:
    """A stacked output of a loop: each iteration stores ``value`` at slope * counter + offset.

    ``number`` is the operand, argument and result of the loop that carries it.
    """

    number: int
    value: ir.Value
    update: ir.Operation
    slope: int
    offset: int


@dataclass(frozen=True)
class StackRead:
    """A stack of which a loop's body reads whole slices of the leading axis alone, at any index.

    ``value`` is the stack outside of the loop. ``inside`` is the stack in the body: the argument of
    that ``number``, which no iteration changes, or a captured value itself, without a number. The
    ``slices`` are the operations that read it, also those in code inside the body.
    """

    value: ir.Value
    inside: ir.Value
    number: int | None
    slices: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class CountedLoop:
    """A while loop with a counter that runs 0, 1, …, trip_count - 1.

    An open one has a dynamic trip count: ``trip_count`` is only the length of its stacks (0 without
    any), and it counts to ``bound``, or until its condition ends it otherwise.
    """

    op: ir.Operation
    counter: int
    trip_count: int
    invariant: frozenset[int]
    stacks: tuple[StackedOutput, ...]
    is_open: bool = False
    bound: ir.Value | None = None

    @property
    def body(self) -> ir.Block:
        return self.op.regions[1].blocks[0]

    @property
    def returned(self) -> ir.Operation:
        """Returns the terminator of the body."""
        return terminator(self.body)

    def read(self, captured: Iterable[ir.Value] = ()) -> Iterator[StackRead]:
        """Yields the stacks that the body reads, of its invariant operands and captured values."""
        arguments: list[ir.Value] = [self.body.arguments[each] for each in sorted(self.invariant)]
        for inside in (*arguments, *captured):
            if slices := self.slices_of(inside):
                number = self._number_of(inside)
                value = inside if number is None else self.op.operands[number]
                yield StackRead(value, inside, number, slices)

    def slices_of(self, inside: ir.Value) -> tuple[ir.Operation, ...] | None:
        """Returns the slices of a stack that the body reads; None where the loop reads an argument
        of the body, or a captured value, otherwise."""
        number = self._number_of(inside)
        if number is not None and is_read(self.op.regions[0].blocks[0].arguments[number]):
            return None
        slices = tuple(self.readers(inside))
        return slices if all(_is_slice(op) and op.operands[0] == inside for op in slices) else None

    def readers(self, inside: ir.Value) -> list[ir.Operation]:
        """Returns the operations in the body that read an argument of it, or a captured value.

        The terminator is no reader of an argument that it returns unchanged.
        """
        number = self._number_of(inside)
        uses = [(use.owner.operation, use.operand_number) for use in inside.uses]
        if number is None:
            found = [op for op, _ in uses if self.op in ancestors(op.block)]
        else:
            found = [op for op, place in uses if place != number or op != self.returned]
        return found[::-1]  # MLIR lists the last use first

    def _number_of(self, inside: ir.Value) -> int | None:
        """Returns the number of an argument of the body; None for a captured value."""
        is_argument = isinstance(inside.owner, ir.Block) and inside.owner == self.body
        return ir.BlockArgument(inside).arg_number if is_argument else None

    def slope(self, op: ir.Operation) -> int:
        """Returns 1 where each iteration reads its slice of a stack with an operation, -1 where it
        reads the slice that is as far from the end, and 0 where the operation reads anything
        else, and in an open loop."""
        if self.is_open or not _is_slice(op) or shape_of(op.operands[0])[0] != self.trip_count:
            return 0
        line = affine_in(op.operands[1], self.body.arguments[self.counter])
        return {(1, 0): 1, (-1, self.trip_count - 1): -1}.get(line, 0) if line else 0


def _is_slice(op: ir.Operation) -> bool:
    """Whether an operation reads one whole slice of the leading axis."""
    if op.name != "stablehlo.dynamic_slice":
        return False
    if shape_of(op.results[0]) != [1, *shape_of(op.operands[0])[1:]]:
        return False
    return all(constant_int(start) == 0 for start in list(op.operands)[2:])


def counted_loop(op: ir.Operation) -> CountedLoop | None:
    """Returns the counter, trip count and carries of a loop; None where it is not counted.

    A loop of a dynamic trip count is none: see ``dynamic_loops``.
    """
    found = _counter_and_trips(op)
    if found is None:
        return None
    counter, trip_count = found
    variable = op.regions[1].blocks[0].arguments[counter]

    def affine_of(index: ir.Value) -> tuple[int, int] | None:
        found = affine_in(index, variable)
        return found if found in ((1, 0), (-1, trip_count - 1)) else None

    stacks = tuple(stack for stack in stacks_of(op, affine_of) if stack_length(stack) == trip_count)
    return CountedLoop(op, counter, trip_count, invariant_carries(op), stacks)


def trip_count_of(op: ir.Operation) -> int | None:
    """Returns the trip count alone, faster than `counted_loop`; None where it is not counted."""
    found = _counter_and_trips(op)
    return None if found is None else found[1]


def _counter_and_trips(op: ir.Operation) -> tuple[int, int] | None:
    if op.name != "stablehlo.while" or has_shardings(op):
        return None
    found = upward_count(op)
    trip_count = None if found is None else constant_int(found[1])
    if found is None or trip_count is None or trip_count < 0:
        return None
    return found[0], trip_count


def invariant_carries(op: ir.Operation) -> frozenset[int]:
    """Returns the carries that a loop's body returns unchanged."""
    body = op.regions[1].blocks[0]
    returned = terminator(body).operands
    return frozenset(
        number for number, argument in enumerate(body.arguments) if returned[number] == argument
    )


_INDEX_ARITHMETIC = frozenset(
    {"stablehlo.add", "stablehlo.multiply", "stablehlo.negate", "stablehlo.subtract"}
)

DEEPEST_INDEX = 8
"""The most operations of index arithmetic that are followed; JAX's scans have two."""


def affine_in(
    value: ir.Value, variable: ir.Value, depth: int = DEEPEST_INDEX
) -> tuple[int, int] | None:
    """Returns (slope, offset) where value = slope * variable + offset; None for other forms.

    Follows additions, subtractions, negations and products with scalar integer constants, at most
    ``depth`` of them in a chain.
    """
    if value == variable:
        return 1, 0
    constant = constant_int(value)
    if constant is not None:
        return 0, constant
    op = defining_op(value)
    if op is None or not depth:
        return None
    if op.name not in _INDEX_ARITHMETIC:
        return None
    parts = [affine_in(operand, variable, depth - 1) for operand in op.operands]
    if op.name == "stablehlo.negate":
        return None if parts[0] is None else (-parts[0][0], -parts[0][1])
    if parts[0] is None or parts[1] is None:
        return None
    (a, b), (c, d) = parts[0], parts[1]
    if op.name == "stablehlo.add":
        return a + c, b + d
    if op.name == "stablehlo.subtract":
        return a - c, b - d
    return (a * d + b * c, b * d) if 0 in (a, c) else None


def upward_count(op: ir.Operation) -> tuple[int, ir.Value] | None:
    """Returns the carry of a loop that counts up by one from zero, and its bound, exclusive.

    The bound is a value of the condition or outside the loop; for an invariant carry, its initial
    value.
    """
    condition = op.regions[0].blocks[0]
    compare = defining_op(terminator(condition).operands[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counted, bound = compare.operands
    arguments: list[ir.Value] = list(condition.arguments)
    if counted not in arguments:
        return None
    number = arguments.index(counted)
    if not counts_up(op, number):
        return None
    if bound in arguments:
        carried = arguments.index(bound)
        if carried not in invariant_carries(op):
            return None
        bound = op.operands[carried]
    return number, bound


def counts_up(op: ir.Operation, number: int) -> bool:
    """Whether a carry of a loop runs 0, 1, 2, …"""
    body = op.regions[1].blocks[0]
    step = affine_in(terminator(body).operands[number], body.arguments[number])
    return step == (1, 1) and constant_int(op.operands[number]) == 0


def stacks_of(
    op: ir.Operation, affine_of: Callable[[ir.Value], tuple[int, int] | None]
) -> list[StackedOutput]:
    """Returns a loop's stacked outputs, where ``affine_of`` has slope and offset of their index."""
    condition, body = op.regions[0].blocks[0], op.regions[1].blocks[0]
    arguments, returned = list(body.arguments), terminator(body)
    found = (
        _stack(number, arguments, returned, affine_of)
        for number in range(len(arguments))
        if not is_read(condition.arguments[number])
    )
    return [stack for stack in found if stack is not None]


def stack_length(stack: StackedOutput) -> int:
    """Returns the number of slices of a stack."""
    return int(ir.RankedTensorType(stack.update.results[0].type).shape[0])


def _stack(
    number: int,
    arguments: list[ir.BlockArgument],
    returned: ir.Operation,
    affine_of: Callable[[ir.Value], tuple[int, int] | None],
) -> StackedOutput | None:
    """Returns the stacked output at this carry, where there is one."""
    update = defining_op(returned.operands[number])
    if update is None or update.name != "stablehlo.dynamic_update_slice":
        return None
    carried, slice_, *starts = update.operands
    if carried != arguments[number] or not starts:
        return None
    if any(constant_int(start) != 0 for start in starts[1:]):
        return None
    if len(list(carried.uses)) != 1 or len(list(update.results[0].uses)) != 1:
        return None
    shape = list(ir.RankedTensorType(carried.type).shape)
    if list(ir.RankedTensorType(slice_.type).shape) != [1, *shape[1:]]:
        return None
    line = affine_of(starts[0])
    if line is None:
        return None
    return StackedOutput(number, _without_leading_axis(slice_, update.block), update, *line)


def _without_leading_axis(slice_: ir.Value, body: ir.Block) -> ir.Value:
    """Returns what ``body`` reshapes or broadcasts to get ``slice_``; else ``slice_`` itself."""
    op = defining_op(slice_)
    if (
        op is None
        or op.block != body
        or op.name not in ("stablehlo.reshape", "stablehlo.broadcast_in_dim")
    ):
        return slice_
    inner = ir.RankedTensorType(op.operands[0].type)
    if [1, *inner.shape] != list(ir.RankedTensorType(slice_.type).shape):
        return slice_
    if op.name == "stablehlo.broadcast_in_dim":
        axes = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        if axes != list(range(1, 1 + len(inner.shape))):
            return slice_
    return op.operands[0]


def counted_loops(block: ir.Block) -> list[CountedLoop]:
    """Returns the counted loops of a block, in order, those in inner blocks left out."""
    found = (counted_loop(view.operation) for view in block.operations)
    return [loop for loop in found if loop is not None]


def runs_of(block: ir.Block) -> int:
    """Returns the product of the constant trip counts of the loops around a block."""
    trip_counts = map(trip_count_of, ancestors(block))
    return math.prod(count for count in trip_counts if count is not None)
