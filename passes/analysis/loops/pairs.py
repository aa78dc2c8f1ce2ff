"""Pairs of a forward and a backward loop: what one stacks, the other reads back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.loops.counted import (
    CountedLoop,
    StackedOutput,
    affine_in,
    constant_int,
    counted_loops,
)
from hloom.passes.analysis.loops.dynamic import direction, dynamic_loops, same_count
from hloom.passes.ir import walk


@dataclass(frozen=True)
class Residual:
    """A stack that a backward loop reads, one slice an iteration, and nothing else does.

    In each iteration the backward body's ``reads`` are what ``stored`` was in the forward body;
    all have the same type. Where the loops stand in the bodies of an outer pair, the stack goes
    from one to the other ``through`` a residual of that pair.
    """

    stack: StackedOutput
    stored: ir.Value
    reads: tuple[ir.Value, ...]
    operands: tuple[int, ...]
    """The backward loop's operands that the stack comes in by."""
    through: Residual | None = None


@dataclass(frozen=True)
class LoopPair:
    """A forward loop and the backward loop that reads its stacks slice by slice.

    ``index`` is the value of the backward body that says where in the stacks it reads; always a
    place that the forward loop wrote, in the iteration with index = slope * counter + offset.
    ``reversed_`` says whether the backward loop goes through the iterations from last to first.
    Of open loops the index is a place that was written, but need not tell the iteration.
    """

    forward: CountedLoop
    backward: CountedLoop
    index: ir.Value
    slope: int
    offset: int
    reversed_: bool
    residuals: tuple[Residual, ...]


@dataclass(frozen=True)
class _Way:
    """How a stack comes from one loop to the other: all the operands that are given it."""

    stack: StackedOutput
    loop: ir.Operation
    operands: tuple[int, ...]
    through: Residual | None = None


def loop_pairs(block: ir.Block) -> list[LoopPair]:
    """All pairs of a forward and a backward loop that stand directly in a block."""
    loops = _loops(block)
    return _pairs(loops, loops, _way)


def nested_pairs(outer: LoopPair) -> list[LoopPair]:
    """Pairs of a loop in a pair's forward body and one in its backward body.

    What the first stacks, the second is given by a residual of the outer pair.
    """
    residuals = {residual.stored: residual for residual in outer.residuals}
    return _pairs(
        _loops(outer.forward.body),
        _loops(outer.backward.body),
        lambda loop, stack: _way_through(residuals, loop.op.results[stack.number], stack),
    )


def _loops(block: ir.Block) -> list[CountedLoop]:
    return [*counted_loops(block), *dynamic_loops(block)]


def _pairs(
    forward_loops: list[CountedLoop],
    backward_loops: list[CountedLoop],
    way_of: Callable[[CountedLoop, StackedOutput], _Way | None],
) -> list[LoopPair]:
    readers = {walk.key(loop.op): loop for loop in backward_loops}
    pairs = []
    for forward in forward_loops:
        ways: dict[Hashable, list[_Way]] = {}
        for stack in forward.stacks:
            way = way_of(forward, stack)
            if way is not None and (loop := walk.key(way.loop)) in readers:
                ways.setdefault(loop, []).append(way)
        for loop, found in ways.items():
            pair = _loop_pair(forward, readers[loop], found)
            if pair is not None:
                pairs.append(pair)
    return pairs


def _way(loop: CountedLoop, stack: StackedOutput) -> _Way | None:
    """The way of a stack that is given to one other operation of the loop's block, only."""
    result = loop.op.results[stack.number]
    return _only_reader(stack, [result], result.type, None)


def _way_through(
    residuals: dict[ir.Value, Residual], result: ir.Value, stack: StackedOutput
) -> _Way | None:
    """The way of a stack that its loop's body hands to an outer stack, and to nothing else."""
    value = result
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return None
        if value in residuals:
            break
        op = uses[0].owner.operation
        if op.name != "stablehlo.reshape":
            return None
        value = op.results[0]
    residual = residuals[value]
    if len(list(residual.stack.update.operands[1].uses)) != 1:
        return None
    return _only_reader(stack, list(residual.reads), result.type, residual)


def _only_reader(
    stack: StackedOutput, values: list[ir.Value], type_: ir.Type, through: Residual | None
) -> _Way | None:
    """The one operation that is given the values; None where several are.

    Reshapes are looked through where they lead back to the type that the values begin with: then
    all they do is undone.
    """
    reader: ir.Operation | None = None
    operands: list[int] = []
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        for use in value.uses:
            op = use.owner.operation
            if op.name == "stablehlo.reshape":
                waiting.append(op.results[0])
            elif value.type != type_ or (reader is not None and reader != op):
                return None
            else:
                reader = op
                operands.append(use.operand_number)
    return None if reader is None else _Way(stack, reader, tuple(sorted(operands)), through)


def _loop_pair(forward: CountedLoop, backward: CountedLoop, ways: list[_Way]) -> LoopPair | None:
    """The pair that two loops form, where the second is given stacks of the first."""
    found = [(way, slices) for way in ways if (slices := _slices(way, backward))]
    if not found:
        return None
    index = found[0][1][0].operands[1]
    if index.type != forward.body.arguments[forward.counter].type:
        return None
    slope = _open_slope(index, forward, backward) if forward.is_open else None
    if not forward.is_open and not backward.is_open:
        slope = _counted_slope(index, forward, backward)
    if slope is None:
        return None
    if backward.is_open:
        backward = dataclasses.replace(backward, trip_count=forward.trip_count)
    writes = found[0][0].stack
    residuals = tuple(
        _link(way, slices)
        for way, slices in found
        if way.stack.slope == writes.slope and all(slice_.operands[1] == index for slice_ in slices)
    )
    return LoopPair(
        forward, backward, index, writes.slope, writes.offset, slope == -writes.slope, residuals
    )


def _counted_slope(index: ir.Value, forward: CountedLoop, backward: CountedLoop) -> int | None:
    """How an index runs over the iterations of a forward loop: 1 or -1; None where it does not."""
    line = affine_in(index, backward.body.arguments[backward.counter])
    if line is None:
        return None
    slope, offset = line
    last = offset + slope * (backward.trip_count - 1)
    if abs(slope) != 1 or not (0 <= offset < forward.trip_count and 0 <= last < forward.trip_count):
        return None
    return slope


def _open_slope(index: ir.Value, forward: CountedLoop, backward: CountedLoop) -> int | None:
    """The same of loops of which nobody knows how far they count."""
    if not backward.is_open or not same_count(forward, backward):
        return None
    return direction(index, backward)


def _slices(way: _Way, loop: CountedLoop) -> list[ir.Operation]:
    """The slices of a stack in a loop's body; none where the loop reads it otherwise."""
    slices: list[ir.Operation] = []
    returned, body = loop.returned, loop.body
    for number in way.operands:
        in_condition = loop.op.regions[0].blocks[0].arguments[number].uses
        if number not in loop.invariant or any(
            True for _ in (*loop.op.results[number].uses, *in_condition)
        ):
            return []
        for use in body.arguments[number].uses:
            reader = use.owner.operation
            if reader == returned:
                continue
            if not _is_slice(reader, body.arguments[number]) or reader.block != body:
                return []
            slices.append(reader)
    return slices


def _is_slice(op: ir.Operation, stack: ir.Value) -> bool:
    """Whether the operation reads one whole slice of the stack at some index."""
    if op.name != "stablehlo.dynamic_slice" or op.operands[0] != stack:
        return False
    shape = list(ir.RankedTensorType(stack.type).shape)
    if list(ir.RankedTensorType(op.results[0].type).shape) != [1, *shape[1:]]:
        return False
    return all(constant_int(start) == 0 for start in list(op.operands)[2:])


def _link(way: _Way, slices: list[ir.Operation]) -> Residual:
    reads = tuple(_squeezed(slice_.results[0]) for slice_ in slices)
    stored = way.stack.value
    if any(read.type != stored.type for read in reads):
        stored = way.stack.update.operands[1]
        reads = tuple(slice_.results[0] for slice_ in slices)
    return Residual(way.stack, stored, reads, way.operands, way.through)


def _squeezed(slice_: ir.Value) -> ir.Value:
    """The slice without its leading axis, where that is all that is read of it."""
    users = [use.owner.operation for use in slice_.uses]
    if len(users) == 1 and users[0].name == "stablehlo.reshape":
        squeezed = users[0].results[0]
        shape = list(ir.RankedTensorType(slice_.type).shape)
        if list(ir.RankedTensorType(squeezed.type).shape) == shape[1:]:
            return squeezed
    return slice_
