"""Writes loops as parts: each is a copy of the loop that runs some of its iterations.

Every part counts from zero and has a constant trip count, so that it is a counted loop again.
Values that the body computes from the counter are computed from the counter plus the part's first
iteration. A part writes and reads its own stacks at its own counter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.loops.counted import CountedLoop, StackedOutput
from ..analysis.purity import erase_dead
from ..ir import walk
from ..ir.build import integer_like, zeros
from ..ir.erase import erase
from ..ir.locations import scoped
from ..ir.values import defining_op, is_read
from ..ir.while_rewriter import Replacements, WhileRewriter
from .groups import SCOPE
from .plan import GroupSplit

Rows = tuple[int, int]
"""Slices of a stack: the first, and the last, exclusive."""


def apply_split(split: GroupSplit) -> None:
    """Replaces the loops of a group by their parts."""
    written: dict[tuple[int, int], Mapping[Rows, ir.Value]] = {}
    for number in range(len(split.group.loops)):
        _write_parts(split, number, written)
    for each in reversed(split.group.loops):
        erase_with_readers(each.loop.op)


def _write_parts(
    split: GroupSplit, number: int, written: dict[tuple[int, int], Mapping[Rows, ir.Value]]
) -> None:
    """Writes the parts of a loop of a group.

    ``written`` has the stacks of earlier loops, by loop and number, and gets those of this one.
    """
    each, all_stacks = split.group.loops[number], split.group.stacks
    read = [(stack, one) for stack in all_stacks for one in stack.readers if one.loop == number]
    places = {one.operand: (stack.writer, stack.stack.number) for stack, one in read}
    parts = LoopParts(
        each.loop,
        each.parts(split.at),
        [stack.stack for stack in all_stacks if stack.writer == number],
        {one.operand: one.ascending for _, one in read},
        SCOPE,
    )
    parts.write(lambda operand, rows: written[places[operand]][rows])
    written |= {(number, place): rows for place, rows in parts.written.items()}


def erase_with_readers(op: ir.Operation) -> None:
    """Erases a replaced loop, and the reshapes between a stack and an erased loop."""
    readers = [use.owner.operation for result in op.results for use in result.uses]
    for reader in dict.fromkeys(readers):
        erase_with_readers(reader)
    erase(op)


class LoopParts:
    """The parts of a loop, written right before it.

    Attributes:
      ranges: the first and the last iteration, exclusive, of each part.
      stacks: the stacks that the loop writes in parts; it carries others from part to part.
      read: the operands that are stacks in parts, each with whether the slice's index goes up.
      scope: the name-stack component of a part.
      sums: the carries that begin with zero in each part, and are added up after it.
      written: for each of the ``stacks``, by its number, the rows that each part has written.
    """

    def __init__(
        self,
        loop: CountedLoop,
        ranges: Iterable[tuple[int, int]],
        stacks: Sequence[StackedOutput],
        read: Mapping[int, bool],
        scope: str,
        sums: Collection[int] = (),
    ) -> None:
        self.loop, self.ranges, self.stacks, self.read = loop, ranges, stacks, read
        self.scope, self.sums = scope, sums
        self.written: dict[int, dict[Rows, ir.Value]] = {each.number: {} for each in stacks}

    def write(self, rows_of: Callable[[int, Rows], ir.Value]) -> None:
        """Writes the parts, and lets the readers of all results but split stacks read theirs.

        ``rows_of`` returns these rows of the stack that is this operand, at the insertion point.
        """
        loop, op = self.loop, self.loop.op
        split = self.written.keys() | self.read.keys()
        carried: list[ir.Value] = list(op.operands)
        # Each part counts from zero, and reads the invariant values of the first one.
        handed_on = [
            number
            for number in range(len(carried))
            if number not in split | loop.invariant | {loop.counter}
        ]
        totals: dict[int, ir.Value] = {}
        for start, end in self.ranges:
            edit, part = self._part(start, end, carried, rows_of)
            for number in handed_on:
                carried[number] = result = part.results[edit.position(number)]
                if number in self.sums:
                    with ir.InsertionPoint(op), op.location:
                        carried[number] = zeros(result.type)
                        if (before := totals.get(number)) is not None:
                            result = stablehlo.AddOp(before, result).result
                    totals[number] = result
        if is_read(op.results[loop.counter]):
            with ir.InsertionPoint(op), op.location:
                carried[loop.counter] = integer_like(carried[loop.counter], loop.trip_count)
        for number, result in enumerate(op.results):
            if number not in split:
                result.replace_all_uses_with(totals.get(number, carried[number]))

    def _part(
        self,
        start: int,
        end: int,
        carried: Sequence[ir.Value],
        rows_of: Callable[[int, Rows], ir.Value],
    ) -> tuple[WhileRewriter, ir.Operation]:
        """Writes the iterations from ``start`` to ``end``, exclusive, as a loop."""

        def rows(ascending: bool) -> Rows:
            trips = self.loop.trip_count
            return (start, end) if ascending else (trips - end, trips - start)

        at = self.loop.op
        with ir.InsertionPoint(at), at.location:
            read = {number: rows_of(number, rows(up)) for number, up in self.read.items()}
        op = at.clone(ir.InsertionPoint(at)).operation
        with scoped(op.location, self.scope):
            part = _LoopPart(op, self.loop, carried, start, end)
            added = [part.write_stack(each) for each in self.stacks]
            for number, stack in read.items():
                part.read_stack(number, stack, ascending=self.read[number])
            loop = part.finish()
        for each, place in zip(self.stacks, added, strict=True):
            made = loop.results[part.edit.position(place)]
            self.written[each.number][rows(each.slope == 1)] = made
        return part.edit, loop


class _LoopPart:
    """A copy of a loop that becomes one of its parts.

    It runs the iterations from ``start`` to ``end``, exclusive, and begins with ``carried``. The
    current location is that of new operations.
    """

    def __init__(
        self, op: ir.Operation, loop: CountedLoop, carried: Sequence[ir.Value], start: int, end: int
    ) -> None:
        self.op, self.trip_count = op, end - start
        self.edit = WhileRewriter(op)
        self.edit.operands = list(carried)
        self.counter = self.edit.body.arguments[loop.counter]
        self._counted_back: ir.Value | None = None
        self._bound()
        if start:
            self._shift(loop.counter, start)

    def _bound(self) -> None:
        """Lets the condition compare the counter with the part's trip count."""
        compare = defining_op(walk.terminator(self.op.regions[0].blocks[0]).operands[0])
        assert compare is not None
        with ir.InsertionPoint(compare):
            compare.operands[1] = integer_like(compare.operands[0], self.trip_count)

    def _shift(self, number: int, start: int) -> None:
        """Lets the body read the counter plus ``start``."""
        readers = [(use.owner.operation, use.operand_number) for use in self.counter.uses]
        with ir.InsertionPoint.at_block_begin(self.edit.body):
            shifted = stablehlo.AddOp(self.counter, integer_like(self.counter, start)).result
        for reader, operand in readers:
            reader.operands[operand] = shifted
        with ir.InsertionPoint(self.edit.terminator):
            following = stablehlo.AddOp(self.counter, integer_like(self.counter, 1)).result
        self.edit.returned[number] = following

    def write_stack(self, stack: StackedOutput) -> int:
        """Replaces a stack by one of the part's length; returns the number of its carry."""
        number = stack.number
        update = defining_op(self.edit.terminator.operands[number])
        assert update is not None
        whole = ir.RankedTensorType(update.results[0].type)
        type_ = ir.RankedTensorType.get([self.trip_count, *whole.shape[1:]], whole.element_type)
        with ir.InsertionPoint(self.op):
            initial = zeros(type_)
        added = self.edit.add(initial)
        _, slice_, _, *others = update.operands
        index = self._index(ascending=stack.slope == 1)
        with ir.InsertionPoint(self.edit.terminator), update.location:
            carried = self.edit.body.arguments[added]
            self.edit.returned[added] = stablehlo.DynamicUpdateSliceOp(
                carried, slice_, [index, *others]
            ).result
        self.edit.drop_stack(number, update)
        return added

    def read_stack(self, operand: int, stack: ir.Value, *, ascending: bool) -> None:
        """Lets the body read slices of a part's stack instead of the whole one, an operand."""
        added = self.edit.add(stack)
        argument = self.edit.body.arguments[added]
        whole = self.edit.body.arguments[operand]
        slices = [use.owner.operation for use in whole.uses]
        for slice_ in slices:
            if slice_ != self.edit.terminator:
                slice_.operands[0] = argument
                slice_.operands[1] = self._index(ascending=ascending)
        self.edit.drop(operand)

    def _index(self, *, ascending: bool) -> ir.Value:
        """Returns the counter, or the same counted back from the last iteration of the part."""
        if ascending:
            return self.counter
        if self._counted_back is None:
            with ir.InsertionPoint.at_block_begin(self.edit.body):
                last = integer_like(self.counter, self.trip_count - 1)
                self._counted_back = stablehlo.SubtractOp(last, self.counter).result
        return self._counted_back

    def finish(self) -> ir.Operation:
        """Builds the loop, and erases the copy."""
        loop = self.edit.apply(Replacements())
        loop.location = ir.Location.current
        erase(self.op)
        for region in loop.regions:
            erase_dead(region.blocks[0])
        return loop
