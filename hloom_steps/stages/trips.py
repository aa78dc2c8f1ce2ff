"""Finds scans over layers, and cuts their iterations into parts that different stages run.

A loop is a scan over layers where an iteration reads its slice of a stacked parameter. The loops
that share stacks with it, mostly its backward loop, are cut at the same slices. Each part has
stacks of its own: a reader of a whole stack reads the concatenated parts, and a reader of slices,
e.g. a part of the backward loop, reads those of one part.

A sum that a backward loop carries, e.g. the gradient of a parameter that all layers share, starts
at zero in each part, and the parts' sums are added after them. So no stage waits for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.analysis.loops.counted import CountedLoop, affine_in, counted_loops
from hloom.passes.ir import walk
from hloom.passes.ir.build import integer_like, zeros
from hloom.passes.ir.locations import scoped
from hloom.passes.ir.ops import BARRIER
from hloom.passes.ir.values import constant_int, defining_op, is_read, shape_of
from hloom.passes.ir.while_rewriter import WhileRewriter
from hloom.passes.split_loop.rewrite import LoopPart
from hloom_steps.stages.rows import RowReader, concatenated, does_each_row_alone, sliced_rows

SCOPE = "hloom.stages"
"""Name-stack component of a loop that is a part of one."""


@dataclass(frozen=True)
class StackLoop:
    """A loop of a group that is cut at the same slices.

    Attributes:
      slices: for each operand that it reads slice by slice, whether the index goes up.
      reversed_: whether its iterations run in the reverse order of the group's first loop.
    """

    loop: CountedLoop
    slices: Mapping[int, bool]
    reversed_: bool = False

    def ranges(self, at: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the iteration ranges of its parts; ``at`` are iterations of the first loop."""
        trips = self.loop.trip_count
        bounds = [0, *at, trips]
        if self.reversed_:
            bounds = [trips - bound for bound in reversed(bounds)]
        return list(itertools.pairwise(bounds))


def layer_groups(block: ir.Block, stacked: Collection[ir.Value]) -> list[list[StackLoop]]:
    """Returns the scans over layers of a block, with all loops that share stacks with them.

    Args:
      block: the program, calls inlined.
      stacked: the values that are computed from parameters alone.
    """
    loops = [StackLoop(loop, _slices(loop)) for loop in counted_loops(block) if loop.trip_count > 1]
    at = {walk.key(each.loop.op): number for number, each in enumerate(loops)}
    links: list[list[tuple[int, bool]]] = [[] for _ in loops]
    layers = set[int]()
    readers: dict[ir.Value, tuple[int, bool]] = {}
    for number, each in enumerate(loops):
        for operand, ascending in each.slices.items():
            base = _base(each.loop.op.operands[operand])
            owner = defining_op(base)
            other: tuple[int, bool] | None = None
            if owner is not None and walk.key(owner) in at:
                writer = at[walk.key(owner)]
                place = ir.OpResult(base).result_number
                slopes = {stack.number: stack.slope for stack in loops[writer].loop.stacks}
                if place in slopes:
                    other = writer, slopes[place] == 1
            elif base in stacked:
                layers.add(number)
                other = readers.setdefault(base, (number, ascending))
            if other is not None and other[0] != number and _alike(loops, number, other[0]):
                against = other[1] != ascending
                links[number].append((other[0], against))
                links[other[0]].append((number, against))
    return list(_groups(loops, links, layers))


def _alike(loops: Sequence[StackLoop], one: int, other: int) -> bool:
    return loops[one].loop.trip_count == loops[other].loop.trip_count


def _groups(
    loops: Sequence[StackLoop], links: Sequence[Sequence[tuple[int, bool]]], layers: set[int]
) -> Iterator[list[StackLoop]]:
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
            yield [
                StackLoop(loops[number].loop, loops[number].slices, found[number])
                for number in sorted(found)
            ]


def _slices(loop: CountedLoop) -> dict[int, bool]:
    """Returns the operands that a loop reads slice by slice, each with whether the index goes
    up."""
    found: dict[int, bool] = {}
    counter, last = loop.body.arguments[loop.counter], loop.trip_count - 1
    condition = loop.op.regions[0].blocks[0]
    for number in sorted(loop.invariant):
        argument = loop.body.arguments[number]
        shape = shape_of(argument)
        if is_read(condition.arguments[number]) or is_read(loop.op.results[number]):
            continue
        if not shape or shape[0] != loop.trip_count:
            continue
        lines = set[tuple[int, int] | None]()
        for use in argument.uses:
            op = use.owner.operation
            if op == loop.returned:
                continue
            is_row = (
                op.name == "stablehlo.dynamic_slice"
                and op.block == loop.body
                and use.operand_number == 0
                and shape_of(op.results[0]) == [1, *shape[1:]]
                and all(constant_int(start) == 0 for start in list(op.operands)[2:])
            )
            lines.add(affine_in(op.operands[1], counter) if is_row else None)
        if len(lines) == 1 and (line := lines.pop()) in ((1, 0), (-1, last)):
            found[number] = line == (1, 0)
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


def cut_group(group: Sequence[StackLoop], at: Sequence[int], late: Iterable[ir.Value]) -> None:
    """Replaces the loops of a group by parts, in place.

    Args:
      group: the loops, in the order of their block.
      at: the iterations of the first loop at which a part starts, ascending.
      late: the values that depend on a cotangent.
    """
    backward, rows = set(late), RowReader()
    sums = [
        _sums(each.loop) if backward.intersection(each.loop.op.results) else set() for each in group
    ]
    for each, numbers in zip(group, sums, strict=True):
        _Parts(each, each.ranges(at), numbers, rows).write()


def _sums(loop: CountedLoop) -> set[int]:
    """Returns the carries that an iteration only adds to."""
    found = set[int]()
    for number, argument in enumerate(loop.body.arguments):
        value = loop.returned.operands[number]
        op = defining_op(value)
        uses = [use.owner.operation for use in argument.uses]
        if op is None or op.name != "stablehlo.add" or op.block != loop.body or uses != [op]:
            continue
        condition = loop.op.regions[0].blocks[0].arguments[number]
        if number != loop.counter and len(list(value.uses)) == 1 and not is_read(condition):
            found.add(number)
    return found


class _Parts:
    """The parts of one loop, written right before it."""

    def __init__(
        self, layer: StackLoop, ranges: list[tuple[int, int]], sums: set[int], rows: RowReader
    ) -> None:
        self._loop, self._slices = layer.loop, layer.slices
        self._ranges, self._sums, self._rows = ranges, sums, rows
        self._stacks = {stack.number: stack for stack in layer.loop.stacks}

    def write(self) -> None:
        loop, op = self._loop, self._loop.op
        apart = {*self._stacks, *self._slices}
        carried: list[ir.Value] = list(op.operands)
        handed_on = [
            number
            for number in range(len(carried))
            if number not in apart | loop.invariant | {loop.counter}
        ]
        pieces: dict[int, list[ir.Value]] = {number: [] for number in self._stacks}
        totals: dict[int, ir.Value] = {}
        for start, end in self._ranges:
            edit, added, part = self._part(start, end, carried)
            for number, place in added.items():
                pieces[number].append(part.results[edit.position(place)])
            for number in handed_on:
                result = part.results[edit.position(number)]
                if number not in self._sums:
                    carried[number] = result
                    continue
                with ir.InsertionPoint(op), op.location:
                    carried[number] = zeros(result.type)
                    before = totals.get(number)
                    totals[number] = (
                        result if before is None else stablehlo.AddOp(before, result).result
                    )
        with ir.InsertionPoint(op), op.location:
            if is_read(op.results[loop.counter]):
                carried[loop.counter] = integer_like(carried[loop.counter], loop.trip_count)
            for number, stack in self._stacks.items():
                if is_read(op.results[number]):
                    found = pieces[number] if stack.slope == 1 else pieces[number][::-1]
                    carried[number] = concatenated(found)
        for number, result in enumerate(op.results):
            if number not in self._slices:
                result.replace_all_uses_with(totals.get(number, carried[number]))
        for number in self._stacks:
            self._read_parts(carried[number])

    def _read_parts(self, stack: ir.Value) -> None:
        """Makes readers of a stack's rows read the part that contains them."""
        for reader in [use.owner.operation for use in stack.uses]:
            rows = sliced_rows(reader)
            if rows is not None:
                with ir.InsertionPoint(reader), reader.location:
                    # Rows written before are not reused: they may come after this reader.
                    reader.results[0].replace_all_uses_with(RowReader().rows(stack, *rows))

    def _part(
        self, start: int, end: int, carried: Sequence[ir.Value]
    ) -> tuple[WhileRewriter, dict[int, int], ir.Operation]:
        """Writes the iterations from ``start`` to ``end``, exclusive, as a loop."""
        trips = self._loop.trip_count
        read: dict[int, ir.Value] = {}
        with ir.InsertionPoint(self._loop.op), self._loop.op.location:
            for number, ascending in self._slices.items():
                rows = (start, end) if ascending else (trips - end, trips - start)
                read[number] = self._rows.rows(carried[number], *rows)
        op = self._loop.op.clone(ir.InsertionPoint(self._loop.op)).operation
        with scoped(op.location, SCOPE):
            part = LoopPart(op, self._loop, carried, start, end)
            added = {number: part.write_stack(each) for number, each in self._stacks.items()}
            for number, rows_read in read.items():
                part.read_stack(number, rows_read, ascending=self._slices[number])
            return part.edit, added, part.finish()
