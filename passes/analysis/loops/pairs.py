"""Pairs of a forward loop and the backward loop that reads the residuals it stacks."""

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
from hloom.passes.ir.custom_calls import is_stored_on_host


@dataclass(frozen=True)
class Residual:
    """A residual: a stack that only a backward loop reads, one slice an iteration.

    In each iteration the backward body's ``reads`` equal what ``stored`` was in the forward body;
    all have the same type. Where the loops are in the bodies of an outer pair, the stack is passed
    ``through`` a residual of that pair.
    """

    stack: StackedOutput
    stored: ir.Value
    reads: tuple[ir.Value, ...]
    operands: tuple[int, ...]
    """The backward loop's operands that are the stack."""
    through: Residual | None = None


@dataclass(frozen=True)
class LoopPair:
    """A forward loop and the backward loop that reads its stacks slice by slice.

    ``index`` is the value of the backward body at which it reads the stacks. The forward loop wrote
    there in the iteration with index = slope * counter + offset; with a dynamic trip count it wrote
    there, but maybe in another iteration. ``reversed_`` is whether the backward loop goes through
    the iterations from last to first.
    """

    forward: CountedLoop
    backward: CountedLoop
    index: ir.Value
    slope: int
    offset: int
    reversed_: bool
    residuals: tuple[Residual, ...]


@dataclass(frozen=True)
class _StackReader:
    """The only operation that reads a stack, and its operands that are the stack."""

    stack: StackedOutput
    loop: ir.Operation
    operands: tuple[int, ...]
    through: Residual | None = None


def loop_pairs(block: ir.Block) -> list[LoopPair]:
    """All pairs of a forward and a backward loop in a block, inner blocks left out."""
    loops = _loops(block)
    return _pairs(loops, loops, _reader)


def nested_pairs(outer: LoopPair) -> list[LoopPair]:
    """Pairs of a loop in a pair's forward body and one in its backward body.

    The stacks of the first reach the second through residuals of the outer pair.
    """
    residuals = {residual.stored: residual for residual in outer.residuals}
    return _pairs(
        _loops(outer.forward.body),
        _loops(outer.backward.body),
        lambda loop, stack: _reader_through(residuals, loop.op.results[stack.number], stack),
    )


def _loops(block: ir.Block) -> list[CountedLoop]:
    return [*counted_loops(block), *dynamic_loops(block)]


def _pairs(
    forward_loops: list[CountedLoop],
    backward_loops: list[CountedLoop],
    reader_of: Callable[[CountedLoop, StackedOutput], _StackReader | None],
) -> list[LoopPair]:
    readers = {walk.key(loop.op): loop for loop in backward_loops}
    pairs = []
    for forward in forward_loops:
        by_loop: dict[Hashable, list[_StackReader]] = {}
        for stack in forward.stacks:
            reader = reader_of(forward, stack)
            if reader is not None and (loop := walk.key(reader.loop)) in readers:
                by_loop.setdefault(loop, []).append(reader)
        for loop, found in by_loop.items():
            pair = _loop_pair(forward, readers[loop], found)
            if pair is not None:
                pairs.append(pair)
    return pairs


def _reader(loop: CountedLoop, stack: StackedOutput) -> _StackReader | None:
    """The only other operation of the loop's block that reads a stack; None for one on the host."""
    if is_stored_on_host(stack.update):
        return None
    result = loop.op.results[stack.number]
    return _only_reader(stack, [result], result.type, None)


def _reader_through(
    residuals: dict[ir.Value, Residual], result: ir.Value, stack: StackedOutput
) -> _StackReader | None:
    """The only reader of a stack that the loop's body stores in an outer stack and nowhere else."""
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
) -> _StackReader | None:
    """The one operation that reads the values; None where there are several.

    Reshapes are followed; they have to lead back to the type that the values begin with.
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
    return None if reader is None else _StackReader(stack, reader, tuple(sorted(operands)), through)


def _loop_pair(
    forward: CountedLoop, backward: CountedLoop, stack_readers: list[_StackReader]
) -> LoopPair | None:
    """The pair of two loops of which the second reads stacks of the first."""
    found = [(reader, slices) for reader in stack_readers if (slices := _slices(reader, backward))]
    if not found:
        return None
    index = found[0][1][0].operands[1]
    if index.type != forward.body.arguments[forward.counter].type:
        return None
    slope = _dynamic_slope(index, forward, backward) if forward.is_open else None
    if not forward.is_open and not backward.is_open:
        slope = _counted_slope(index, forward, backward)
    if slope is None:
        return None
    if backward.is_open:
        backward = dataclasses.replace(backward, trip_count=forward.trip_count)
    writes = found[0][0].stack
    residuals = tuple(
        _residual(reader, slices)
        for reader, slices in found
        if reader.stack.slope == writes.slope
        and all(slice_.operands[1] == index for slice_ in slices)
    )
    return LoopPair(
        forward, backward, index, writes.slope, writes.offset, slope == -writes.slope, residuals
    )


def _counted_slope(index: ir.Value, forward: CountedLoop, backward: CountedLoop) -> int | None:
    """The slope, 1 or -1, of an index that stays within a forward loop's iterations; else None."""
    found = affine_in(index, backward.body.arguments[backward.counter])
    if found is None:
        return None
    slope, offset = found
    last = offset + slope * (backward.trip_count - 1)
    if abs(slope) != 1 or not (0 <= offset < forward.trip_count and 0 <= last < forward.trip_count):
        return None
    return slope


def _dynamic_slope(index: ir.Value, forward: CountedLoop, backward: CountedLoop) -> int | None:
    """The slope of an index where the trip counts are dynamic."""
    if not backward.is_open or not same_count(forward, backward):
        return None
    return direction(index, backward)


def _slices(reader: _StackReader, loop: CountedLoop) -> list[ir.Operation]:
    """The slices of a stack in a loop's body; empty where the loop reads it in another way."""
    slices: list[ir.Operation] = []
    returned, body = loop.returned, loop.body
    for number in reader.operands:
        in_condition = loop.op.regions[0].blocks[0].arguments[number].uses
        if number not in loop.invariant or any(
            True for _ in (*loop.op.results[number].uses, *in_condition)
        ):
            return []
        for use in body.arguments[number].uses:
            op = use.owner.operation
            if op == returned:
                continue
            if not _is_slice(op, body.arguments[number]) or op.block != body:
                return []
            slices.append(op)
    return slices


def _is_slice(op: ir.Operation, stack: ir.Value) -> bool:
    """Whether the operation reads one whole slice of the stack at some index."""
    if op.name != "stablehlo.dynamic_slice" or op.operands[0] != stack:
        return False
    shape = list(ir.RankedTensorType(stack.type).shape)
    if list(ir.RankedTensorType(op.results[0].type).shape) != [1, *shape[1:]]:
        return False
    return all(constant_int(start) == 0 for start in list(op.operands)[2:])


def _residual(reader: _StackReader, slices: list[ir.Operation]) -> Residual:
    reads = tuple(_squeezed(slice_.results[0]) for slice_ in slices)
    stored = reader.stack.value
    if any(read.type != stored.type for read in reads):
        stored = reader.stack.update.operands[1]
        reads = tuple(slice_.results[0] for slice_ in slices)
    return Residual(reader.stack, stored, reads, reader.operands, reader.through)


def _squeezed(slice_: ir.Value) -> ir.Value:
    """The slice without its leading axis, where that is all that is read of it."""
    users = [use.owner.operation for use in slice_.uses]
    if len(users) == 1 and users[0].name == "stablehlo.reshape":
        squeezed = users[0].results[0]
        shape = list(ir.RankedTensorType(slice_.type).shape)
        if list(ir.RankedTensorType(squeezed.type).shape) == shape[1:]:
            return squeezed
    return slice_
