"""Finds scans over layers, and cuts their iterations into parts that different stages run.

A loop is a scan over layers where an iteration reads its slice of a stacked parameter. The loops
that share stacks with it, mostly its backward loop, are cut at the same slices. Each part has
stacks of its own: a reader of a whole stack reads the concatenated parts, and a reader of slices,
e.g. a part of the backward loop, reads those of one part.

A sum that a backward loop carries, e.g. the gradient of a parameter that all layers share, starts
at zero in each part, and the parts' sums are added after them. So no stage waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from jax.extend.mlir import ir

from hloom.passes.analysis.loops.additions import additions
from hloom.passes.analysis.loops.counted import CountedLoop, counted_loops
from hloom.passes.ir import walk
from hloom.passes.ir.ops import BARRIER
from hloom.passes.ir.values import defining_op, is_read
from hloom.passes.split_loop.groups import GroupLoop
from hloom.passes.split_loop.rewrite import LoopParts
from hloom_steps.stages.rows import RowReader, concatenated, does_each_row_alone, sliced_rows

SCOPE = "hloom.stages"
"""Name-stack component of a loop that is a part of one."""


def layer_groups(block: ir.Block, stacked: Collection[ir.Value]) -> list[list[GroupLoop]]:
    """Returns the scans over layers of a block, with all loops that share stacks with them.

    Args:
      block: the program, calls inlined.
      stacked: the values that are computed from parameters alone.
    """
    loops = [loop for loop in counted_loops(block) if loop.trip_count > 1]
    at = {walk.key(loop.op): number for number, loop in enumerate(loops)}
    links: list[list[tuple[int, bool]]] = [[] for _ in loops]
    layers = set[int]()
    readers: dict[ir.Value, tuple[int, bool]] = {}
    for number, loop in enumerate(loops):
        for operand, ascending in _slices(loop).items():
            base = _base(loop.op.operands[operand])
            owner = defining_op(base)
            other: tuple[int, bool] | None = None
            if owner is not None and walk.key(owner) in at:
                writer = at[walk.key(owner)]
                place = ir.OpResult(base).result_number
                slopes = {stack.number: stack.slope for stack in loops[writer].stacks}
                if place in slopes:
                    other = writer, slopes[place] == 1
            elif base in stacked:
                layers.add(number)
                other = readers.setdefault(base, (number, ascending))
            if other is None or other[0] == number:
                continue
            if loop.trip_count == loops[other[0]].trip_count:
                against = other[1] != ascending
                links[number].append((other[0], against))
                links[other[0]].append((number, against))
    return list(_groups(loops, links, layers))


def _groups(
    loops: Sequence[CountedLoop], links: Sequence[Sequence[tuple[int, bool]]], layers: set[int]
) -> Iterator[list[GroupLoop]]:
    """Yields the groups of linked loops that contain a scan over layers."""
    seen: dict[int, bool] = {}
    for first in range(len(loops)):
        if first in seen:
            continue
        found, waiting = {first: False}, [first]
        while waiting:
            number = waiting.pop()
            for other, against in links[number]:
                if other not in found:
                    found[other] = found[number] != against
                    waiting.append(other)
        seen |= found
        if layers & found.keys():
            yield [GroupLoop(loops[number], found[number]) for number in sorted(found)]


def _slices(loop: CountedLoop) -> dict[int, bool]:
    """Returns the operands that a loop reads slice by slice, each with whether the index goes
    up."""
    found: dict[int, bool] = {}
    for stack in loop.read():
        number, slopes = stack.number, {loop.slope(op) for op in stack.slices}
        if number is None or is_read(loop.op.results[number]) or len(slopes) > 1:
            continue
        if (slope := slopes.pop()) and all(op.block == loop.body for op in stack.slices):
            found[number] = slope == 1
    return found


def _base(value: ir.Value) -> ir.Value:
    """Returns the value that a stack is computed from by operations on each slice alone."""
    while (op := defining_op(value)) is not None:
        if op.name == BARRIER:
            value = op.operands[ir.OpResult(value).result_number]
        elif does_each_row_alone(op):
            value = op.operands[0]
        else:
            break
    return value


def cut_group(group: Sequence[GroupLoop], at: Sequence[int], late: Iterable[ir.Value]) -> None:
    """Replaces the loops of a group by parts, in place.

    Args:
      group: the loops, in the order of their block.
      at: the iterations of the first loop at which a part starts, ascending.
      late: the values that depend on a cotangent.
    """
    backward, rows = set(late), RowReader()
    loops = [each.loop for each in group]
    sums = [_sums(loop) if backward.intersection(loop.op.results) else set() for loop in loops]
    for each, numbers in zip(group, sums, strict=True):
        _write_parts(each.loop, each.parts(at), numbers, rows)


def _sums(loop: CountedLoop) -> set[int]:
    """Returns the carries that an iteration only adds to."""
    read = loop.op.regions[0].blocks[0].arguments
    carried = [number for number in range(len(read)) if additions(loop, number) is not None]
    return {number for number in carried if number != loop.counter and not is_read(read[number])}


def _write_parts(
    loop: CountedLoop, ranges: list[tuple[int, int]], sums: set[int], rows: RowReader
) -> None:
    """Writes the parts of one loop, right before it."""
    op = loop.op
    parts = LoopParts(loop, ranges, loop.stacks, _slices(loop), SCOPE, sums)
    parts.write(lambda operand, found: rows.rows(op.operands[operand], *found))
    for number, pieces in parts.written.items():
        if is_read(op.results[number]):
            with ir.InsertionPoint(op), op.location:
                stack = concatenated([pieces[each] for each in sorted(pieces)])
            op.results[number].replace_all_uses_with(stack)
            _read_parts(stack)


def _read_parts(stack: ir.Value) -> None:
    """Makes readers of a stack's rows read the part that contains them."""
    for reader in [use.owner.operation for use in stack.uses]:
        rows = sliced_rows(reader)
        if rows is not None:
            with ir.InsertionPoint(reader), reader.location:
                # Rows written before are not reused: they may come after this reader.
                reader.results[0].replace_all_uses_with(RowReader().rows(stack, *rows))
