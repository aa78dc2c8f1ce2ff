"""Pairs of a forward and a backward loop: what one stacks, the other reads back."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.loops import (
    CountedLoop,
    Stack,
    affine_in,
    constant_int,
    counted_loops,
)


@dataclass(frozen=True)
class Link:
    """A stack that a backward loop reads, one slice an iteration, and nothing else does.

    In each iteration the backward body's ``reads`` are what ``stored`` was in the forward body;
    all have the same type.
    """

    stack: Stack
    stored: ir.Value
    reads: tuple[ir.Value, ...]
    operands: tuple[int, ...]
    """The backward loop's operands that the stack comes in by."""


@dataclass(frozen=True)
class LoopPair:
    """A forward loop and the backward loop that reads its stacks slice by slice.

    ``index`` is the value of the backward body that says where in the stacks it reads; always a
    place that the forward loop wrote, in the iteration with index = slope * counter + offset.
    ``reversed_`` says whether the backward loop goes through the iterations from last to first.
    """

    forward: CountedLoop
    backward: CountedLoop
    index: ir.Value
    slope: int
    offset: int
    reversed_: bool
    links: tuple[Link, ...]


def loop_pair(forward: CountedLoop, backward: CountedLoop) -> LoopPair | None:
    """The pair that two loops of one block form, where the second reads stacks of the first."""
    found = [
        (stack, slices, operands)
        for stack in forward.stacks
        for slices, operands in [_slices(forward.op.results[stack.number], backward)]
        if slices
    ]
    if not found:
        return None
    index = found[0][1][0].operands[1]
    line = affine_in(index, backward.body.arguments[backward.counter])
    if line is None or index.type != forward.body.arguments[forward.counter].type:
        return None
    slope, offset = line
    last = offset + slope * (backward.trips - 1)
    if abs(slope) != 1 or not (0 <= offset < forward.trips and 0 <= last < forward.trips):
        return None
    writes = found[0][0]
    links = tuple(
        _link(stack, slices, operands)
        for stack, slices, operands in found
        if all(slice_.operands[1] == index for slice_ in slices) and stack.slope == writes.slope
    )
    return LoopPair(
        forward, backward, index, writes.slope, writes.offset, slope == -writes.slope, links
    )


def _slices(stack: ir.Value, loop: CountedLoop) -> tuple[list[ir.Operation], tuple[int, ...]]:
    """The slices of a stack in a loop's body, and its operands; none where it is read otherwise."""
    slices: list[ir.Operation] = []
    operands: list[int] = []
    returned, body = loop.returned, loop.body
    for use in stack.uses:
        number = use.operand_number
        if use.owner.operation != loop.op or number not in loop.invariant:
            return [], ()
        in_condition = loop.op.regions[0].blocks[0].arguments[number].uses
        if any(True for _ in (*loop.op.results[number].uses, *in_condition)):
            return [], ()
        operands.append(number)
        for inner in body.arguments[number].uses:
            reader = inner.owner.operation
            if reader == returned:
                continue
            if not _is_slice(reader, body.arguments[number]) or reader.block != body:
                return [], ()
            slices.append(reader)
    return slices, tuple(operands)


def _is_slice(op: ir.Operation, stack: ir.Value) -> bool:
    """Whether the operation reads one whole slice of the stack at some index."""
    if op.name != "stablehlo.dynamic_slice" or op.operands[0] != stack:
        return False
    shape = list(ir.RankedTensorType(stack.type).shape)
    if list(ir.RankedTensorType(op.results[0].type).shape) != [1, *shape[1:]]:
        return False
    return all(constant_int(start) == 0 for start in list(op.operands)[2:])


def _link(stack: Stack, slices: list[ir.Operation], operands: tuple[int, ...]) -> Link:
    reads = [_squeezed(slice_.results[0]) for slice_ in slices]
    if all(read.type == stack.value.type for read in reads):
        return Link(stack, stack.value, tuple(reads), operands)
    raw = tuple(slice_.results[0] for slice_ in slices)
    return Link(stack, stack.update.operands[1], raw, operands)


def _squeezed(slice_: ir.Value) -> ir.Value:
    """The slice without its leading axis, where that is all that is read of it."""
    users = [use.owner.operation for use in slice_.uses]
    if len(users) == 1 and users[0].name == "stablehlo.reshape":
        squeezed = users[0].results[0]
        shape = list(ir.RankedTensorType(slice_.type).shape)
        if list(ir.RankedTensorType(squeezed.type).shape) == shape[1:]:
            return squeezed
    return slice_


def loop_pairs(block: ir.Block) -> list[LoopPair]:
    """All pairs of a forward and a backward loop that stand directly in a block."""
    loops = {loop.op: loop for loop in counted_loops(block)}
    pairs = []
    for forward in loops.values():
        results = [forward.op.results[stack.number] for stack in forward.stacks]
        readers = dict.fromkeys(use.owner.operation for result in results for use in result.uses)
        for reader in readers:
            if reader in loops and (pair := loop_pair(forward, loops[reader])) is not None:
                pairs.append(pair)
    return pairs
