"""Pairs of a loop that stacks values and a loop that reads the stacks slice by slice.

The second loop is mostly the backward pass of the first. It need not be: the slices that each
iteration reads make a pair, not the purpose of the loops.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.custom_calls import is_stored_on_host
from ...ir.values import is_read
from .counted import CountedLoop, StackedOutput, affine_in, counted_loops
from .dynamic import direction, dynamic_loops, same_count

Passages = Mapping[ir.Value, Sequence[ir.Value]]
"""By value of a forward body, which it passes on and nothing else reads, the values of a backward
body that equal it."""


@dataclass(frozen=True)
class Residual:
    """A residual: a stack that only later loops read, each one slice an iteration.

    In each iteration of this pair's backward body the ``reads`` equal the value of ``stored`` in
    the forward body; all have the same type. They are the results of ``slices``, or reshaped from
    these. Where the loops are in the bodies of an outer pair, the stack is passed ``through`` a
    residual of that pair.
    """

    stack: StackedOutput
    stored: ir.Value
    slices: tuple[ir.Operation, ...]
    reads: tuple[ir.Value, ...]
    operands: tuple[int, ...]
    """The backward loop's operands that are the stack."""
    readers: int = 1
    """The number of loops that read the stack."""
    through: Residual | None = None


@dataclass(frozen=True)
class LoopPair:
    """A forward loop, and a backward loop that reads its stacks slice by slice.

    ``index`` is the value of the backward body at which it reads the stacks. The forward loop wrote
    that slice in the iteration with index = slope * counter + offset; with a dynamic trip count
    maybe in another iteration. ``reversed_`` is whether the backward loop goes through the
    iterations from last to first. All pairs of one forward loop have its slope and offset, and a
    residual that several loops read is in the pairs of all of them.
    """

    forward: CountedLoop
    backward: CountedLoop
    index: ir.Value
    slope: int
    offset: int
    reversed_: bool
    residuals: tuple[Residual, ...]

    @property
    def bodies(self) -> tuple[ir.Block, ir.Block]:
        """Returns the bodies of both loops."""
        return self.forward.body, self.backward.body

    @property
    def passages(self) -> Passages:
        """Returns the reads of the residuals that are stored alone."""
        return {
            each.stored: each.reads
            for each in self.residuals
            if len(list(each.stack.update.operands[1].uses)) == 1
        }


@dataclass(frozen=True)
class _StackReader:
    """An operation that reads a stack, and its operands that are the stack."""

    stack: StackedOutput
    loop: ir.Operation
    operands: tuple[int, ...]
    readers: int
    through: Residual | None = None


def loop_pairs(block: ir.Block) -> list[LoopPair]:
    """Returns all pairs of a forward and a backward loop in a block, inner blocks left out."""
    loops = _loops(block)
    return _pairs(loops, loops, _readers)


def nested_pairs(outer: LoopPair) -> list[LoopPair]:
    """Returns the pairs of a loop in a pair's forward body and one in its backward body.

    The stacks of the first reach the second through residuals of the outer pair, and nothing else
    in the outer backward body reads them.
    """
    residuals = {residual.stored: residual for residual in outer.residuals}
    return pairs_through(outer.forward.body, outer.backward.body, outer.passages, residuals)


def pairs_through(
    forward: ir.Block,
    backward: ir.Block,
    passages: Passages,
    residuals: Mapping[ir.Value, Residual] | None = None,
) -> list[LoopPair]:
    """Returns the pairs of a loop in one block and one in another, which reads its stacks through
    passages alone.

    ``residuals`` are those of an outer pair by what they store, if the passages are of one.
    """
    given = residuals or {}
    return _pairs(
        _loops(forward),
        _loops(backward),
        lambda loop, stack: _readers_through(passages, given, loop.op.results[stack.number], stack),
    )


def _loops(block: ir.Block) -> list[CountedLoop]:
    return [*counted_loops(block), *dynamic_loops(block)]


def _pairs(
    forward_loops: list[CountedLoop],
    backward_loops: list[CountedLoop],
    readers_of: Callable[[CountedLoop, StackedOutput], list[_StackReader]],
) -> list[LoopPair]:
    loops = {walk.key(loop.op): loop for loop in backward_loops}
    pairs: list[LoopPair] = []
    for forward in forward_loops:
        by_loop: dict[Hashable, list[_StackReader]] = {}
        for stack in forward.stacks:
            found = readers_of(forward, stack)
            if all(walk.key(reader.loop) in loops for reader in found):
                for reader in found:
                    by_loop.setdefault(walk.key(reader.loop), []).append(reader)
        alone = (_loop_pair(forward, loops[loop], found) for loop, found in by_loop.items())
        pairs += closed([pair for pair in alone if pair is not None])
    return pairs


def closed(pairs: Sequence[LoopPair]) -> list[LoopPair]:
    """Returns pairs of one forward loop, with the residuals alone whose readers are all among them.

    Pairs without a remaining residual, or with another slope or offset than the first, are dropped.
    """
    alike = [p for p in pairs if (p.slope, p.offset) == (pairs[0].slope, pairs[0].offset)]
    found = Counter(residual.stack.number for pair in alike for residual in pair.residuals)
    kept = (
        dataclasses.replace(
            pair, residuals=tuple(r for r in pair.residuals if found[r.stack.number] == r.readers)
        )
        for pair in alike
    )
    return [pair for pair in kept if pair.residuals]


def _readers(loop: CountedLoop, stack: StackedOutput) -> list[_StackReader]:
    """Returns other operations of the loop's block that read a stack; none for one on the host."""
    if is_stored_on_host(stack.update):
        return []
    result = loop.op.results[stack.number]
    return _readers_of(stack, [result], result.type, None)


def _readers_through(
    passages: Passages,
    residuals: Mapping[ir.Value, Residual],
    result: ir.Value,
    stack: StackedOutput,
) -> list[_StackReader]:
    """Returns the one reader of a stack that a passage takes to another block, and that nothing
    else reads."""
    value = result
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return []
        if value in passages:
            break
        op = uses[0].owner.operation
        if op.name != "stablehlo.reshape":
            return []
        value = op.results[0]
    readers = _readers_of(stack, passages[value], result.type, residuals.get(value))
    return readers if len(readers) == 1 else []


def _readers_of(
    stack: StackedOutput, values: Iterable[ir.Value], type_: ir.Type, through: Residual | None
) -> list[_StackReader]:
    """Returns the operations that read the values; none where one reads them as another type.

    Reshapes are followed; they have to lead back to the values' own type.
    """
    found: dict[Hashable, tuple[ir.Operation, list[int]]] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        for use in value.uses:
            op = use.owner.operation
            if op.name == "stablehlo.reshape":
                waiting.append(op.results[0])
            elif value.type != type_:
                return []
            else:
                found.setdefault(walk.key(op), (op, []))[1].append(use.operand_number)
    return [
        _StackReader(stack, op, tuple(sorted(operands)), len(found), through)
        for op, operands in found.values()
    ]


def _loop_pair(
    forward: CountedLoop, backward: CountedLoop, stack_readers: list[_StackReader]
) -> LoopPair | None:
    """Returns the pair of two loops of which the second reads stacks of the first."""
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
    """Returns the slope, 1 or -1, of an index within a forward loop's iterations; else None."""
    found = affine_in(index, backward.body.arguments[backward.counter])
    if found is None:
        return None
    slope, offset = found
    last = offset + slope * (backward.trip_count - 1)
    if abs(slope) != 1 or not (0 <= offset < forward.trip_count and 0 <= last < forward.trip_count):
        return None
    return slope


def _dynamic_slope(index: ir.Value, forward: CountedLoop, backward: CountedLoop) -> int | None:
    """Returns the slope of an index where the trip counts are dynamic."""
    if not backward.is_open or not same_count(forward, backward):
        return None
    return direction(index, backward)


def _slices(reader: _StackReader, loop: CountedLoop) -> tuple[ir.Operation, ...]:
    """Returns the slices of a stack, right in a loop's body; empty where it is read otherwise."""
    found: list[ir.Operation] = []
    for number in reader.operands:
        if number not in loop.invariant or is_read(loop.op.results[number]):
            return ()
        slices = loop.slices_of(loop.body.arguments[number])
        if slices is None or any(op.block != loop.body for op in slices):
            return ()
        found += slices[::-1]
    return tuple(found)


def _residual(reader: _StackReader, slices: tuple[ir.Operation, ...]) -> Residual:
    reads = tuple(_squeezed(slice_.results[0]) for slice_ in slices)
    stack, stored = reader.stack, reader.stack.value
    if any(read.type != stored.type for read in reads):
        stored = stack.update.operands[1]
        reads = tuple(slice_.results[0] for slice_ in slices)
    return Residual(stack, stored, slices, reads, reader.operands, reader.readers, reader.through)


def _squeezed(slice_: ir.Value) -> ir.Value:
    """Returns the slice without its leading axis, where that is all that is read of it."""
    users = [use.owner.operation for use in slice_.uses]
    if len(users) == 1 and users[0].name == "stablehlo.reshape":
        squeezed = users[0].results[0]
        shape = list(ir.RankedTensorType(slice_.type).shape)
        if list(ir.RankedTensorType(squeezed.type).shape) == shape[1:]:
            return squeezed
    return slice_
