"""Writes loops as parts: each is a copy of the loop that runs some of its iterations.

Every part counts from zero and has a constant trip count, so that it is a counted loop again.
Values that the body computes from the counter are computed from the counter plus the part's first
iteration. A part writes and reads its own stacks at its own counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from .groups import SCOPE, SplitStack
from .plan import GroupSplit


@dataclass(frozen=True)
class _PartOfStack:
    """The slices of a stack from ``start`` to ``end``, exclusive, which one part writes."""

    writer: int
    number: int
    start: int
    end: int


def apply_split(split: GroupSplit) -> None:
    """Replaces the loops of a group by their parts."""
    loops = [each.loop for each in split.group.loops]
    written: dict[_PartOfStack, ir.Value] = {}
    for number in range(len(loops)):
        _LoopParts(split, number, written).write()
    for loop in reversed(loops):
        _erase_with_readers(loop.op)


def _erase_with_readers(op: ir.Operation) -> None:
    """Erases a replaced loop, and the reshapes between a stack and an erased loop."""
    readers = [use.owner.operation for result in op.results for use in result.uses]
    for reader in dict.fromkeys(readers):
        _erase_with_readers(reader)
    erase(op)


class _LoopParts:
    """The parts of one loop of a group, written right before it."""

    def __init__(
        self, split: GroupSplit, number: int, written: dict[_PartOfStack, ir.Value]
    ) -> None:
        """``written`` has the stacks of the group's earlier parts, and gets these ones."""
        self.loop: CountedLoop = split.group.loops[number].loop
        self.ranges = split.group.loops[number].parts(split.at)
        self.written = written
        stacks = split.group.stacks
        self.stacks = [stack for stack in stacks if stack.writer == number]
        self.reads = [
            (stack, reader) for stack in stacks for reader in stack.readers if reader.loop == number
        ]

    def write(self) -> None:
        """Writes the parts, and lets all readers but the loops of the group read their results."""
        loop, op = self.loop, self.loop.op
        split = {stack.stack.number for stack in self.stacks}
        split |= {reader.operand for _, reader in self.reads}
        carried: list[ir.Value] = list(op.operands)
        # Each part counts from zero, and reads the invariant values of the first one.
        handed_on = [
            number
            for number in range(len(carried))
            if number not in split | loop.invariant | {loop.counter}
        ]
        for start, end in self.ranges:
            edit, part = self._part(start, end, carried)
            for number in handed_on:
                carried[number] = part.results[edit.position(number)]
        if is_read(op.results[loop.counter]):
            with ir.InsertionPoint(op), op.location:
                carried[loop.counter] = integer_like(carried[loop.counter], loop.trip_count)
        for number, result in enumerate(op.results):
            if number not in split:
                result.replace_all_uses_with(carried[number])

    def _part(
        self, start: int, end: int, carried: Sequence[ir.Value]
    ) -> tuple[WhileRewriter, ir.Operation]:
        """Writes the iterations from ``start`` to ``end``, exclusive, as a loop."""
        op = self.loop.op.clone(ir.InsertionPoint(self.loop.op)).operation
        with scoped(op.location, SCOPE):
            part = LoopPart(op, self.loop, carried, start, end)
            added = {
                self._slices(stack, start, end, ascending=stack.stack.slope == 1): (
                    part.write_stack(stack.stack)
                )
                for stack in self.stacks
            }
            for stack, reader in self.reads:
                slices = self._slices(stack, start, end, ascending=reader.ascending)
                part.read_stack(reader.operand, self.written[slices], ascending=reader.ascending)
            loop = part.finish()
        for slices, number in added.items():
            self.written[slices] = loop.results[part.edit.position(number)]
        return part.edit, loop

    def _slices(self, stack: SplitStack, start: int, end: int, *, ascending: bool) -> _PartOfStack:
        """Returns the slices that iterations from ``start`` to ``end`` write or read."""
        if not ascending:
            start, end = self.loop.trip_count - end, self.loop.trip_count - start
        return _PartOfStack(stack.writer, stack.stack.number, start, end)


class LoopPart:
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
