"""Passes values of forward code to backward code, through the loops and manual computations around
both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..analysis.loops.counted import counted_loop
from ..analysis.loops.pairs import LoopPair
from ..analysis.manual_pairs import ManualPair
from ..analysis.purity import erase_dead
from ..ir import walk
from ..ir.build import reshaped, slice_of_stack, zeros
from ..ir.erase import erase
from ..ir.manual_rewriter import ManualRewriter
from ..ir.values import defining_op, is_read, shape_of
from ..ir.while_rewriter import Replacements, WhileRewriter
from .site import Border, ends_of


@dataclass
class BorderCrossing:
    """The values that pass a border for attentions. Zeros are their placeholders until `rebuild`.

    Attributes:
      border: the pair of loops or of manual computations.
      outer: the crossing of the pair in whose bodies they are; None outside of pairs.
    """

    border: Border
    outer: BorderCrossing | None
    _passed: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    """Values of the forward body, and their placeholders in the backward body."""
    _brought: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    """Values before a loop, and their placeholders inside it."""
    _between: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)
    """Zeros in the bodies of outer loops, by the value in front of these and the side."""
    _forward: ir.Operation | None = None
    """The forward operation, once it is rebuilt."""

    def pass_on(self, value: ir.Value) -> ir.Value:
        """Returns, at an insertion point in the backward body, a value of the forward body."""
        stand_in = zeros(value.type)
        self._passed.append((value, stand_in))
        return stand_in

    def bring(self, value: ir.Value, body: ir.Block) -> ir.Value:
        """Returns, at an insertion point in a loop's body, a value from in front of all loops
        around it."""
        outer = self.outer
        if outer is not None and isinstance(outer.border, LoopPair):
            side = self.border.bodies.index(body)
            if (value, side) not in self._between:
                end = ends_of(self.border)[side]
                with ir.InsertionPoint(end), end.location:
                    self._between[value, side] = outer.bring(value, end.block)
            value = self._between[value, side]
        stand_in = zeros(value.type)
        self._brought.append((value, stand_in))
        return stand_in

    def rebuild(self) -> None:
        """Rebuilds both operations with the values that cross; the second one loses what nothing
        reads. Crossings inside have to be rebuilt before.
        """
        if isinstance(self.border, ManualPair):
            self._rebuild_computations(self.border)
        else:
            self._rebuild_loops(self.border)

    def drop_unread(self) -> None:
        """Drops the results of the forward operation that nothing reads. Those of the crossings
        outside are dropped before."""
        assert self._forward is not None
        block = self._forward.block
        erase_dead(block)
        if isinstance(self.border, ManualPair):
            _drop_results(self._forward)
        else:
            _drop_stacks(self._forward)
        erase_dead(block)

    def _rebuild_loops(self, pair: LoopPair) -> None:
        replaced = Replacements()
        forward = WhileRewriter(pair.forward.op)
        index = pair.residuals[0].stack.update.operands[2]
        numbers: dict[ir.Value, int] = {}
        for value, _ in self._passed:
            if value not in numbers:
                count = pair.forward.trip_count
                numbers[value] = forward.add_stack(value, count, index, value.location)
        self._carry(forward)
        self._forward = forward.apply(replaced)
        erase(forward.op)
        backward = WhileRewriter(pair.backward.op)
        self._carry(backward)
        carried: dict[ir.Value, int] = {}
        for value, stand_in in self._passed:
            if value not in carried:
                stack = self._forward.results[forward.position(numbers[value])]
                carried[value] = backward.add(self._read_behind(stack, backward.op))
            maker = defining_op(stand_in)
            assert maker is not None
            with ir.InsertionPoint(maker), maker.location:
                part = slice_of_stack(backward.body.arguments[carried[value]], pair.index)
                read = reshaped(part, shape_of(value))
            stand_in.replace_all_uses_with(read)
        erase_dead(backward.body)
        for residual in pair.residuals:
            for number in residual.operands:
                uses = backward.body.arguments[number].uses
                if all(use.owner.operation == backward.terminator for use in uses):
                    backward.drop(number)
        backward.apply(replaced)
        erase(backward.op)

    def _carry(self, edit: WhileRewriter) -> None:
        """Lets a loop carry values from outside, whose placeholders are in its body."""
        numbers: dict[ir.Value, int] = {}
        for value, stand_in in self._brought:
            maker = defining_op(stand_in)
            if maker is None or maker.block != edit.body:
                continue
            if value not in numbers:
                numbers[value] = edit.add(value)
            stand_in.replace_all_uses_with(edit.body.arguments[numbers[value]])

    def _rebuild_computations(self, pair: ManualPair) -> None:
        forward = ManualRewriter(pair.forward)
        numbers = {value: forward.add_result(value) for value in dict(self._passed)}
        self._forward = forward.apply()
        backward = ManualRewriter(pair.backward)
        arguments: dict[ir.Value, ir.Value] = {}
        for value, stand_in in self._passed:
            if value not in arguments:
                given = self._read_behind(self._forward.results[numbers[value]], pair.backward)
                arguments[value] = backward.add_operand(given, value.type)
            stand_in.replace_all_uses_with(arguments[value])
        erase_dead(backward.body)
        for each in pair.passed:
            for number in each.operands:
                if not is_read(backward.body.arguments[number]):
                    backward.drop_operand(number)
        backward.apply()

    def _read_behind(self, value: ir.Value, end: ir.Operation) -> ir.Value:
        """Returns a value, of the block of the forward operation, in front of the backward one."""
        if self.outer is None:
            return value
        with ir.InsertionPoint(end), end.location:
            return self.outer.pass_on(value)


class Crossings:
    """The crossings of the attentions of a module."""

    def __init__(self) -> None:
        self._all: dict[object, BorderCrossing] = {}

    def of(self, borders: Sequence[Border]) -> BorderCrossing | None:
        """Returns the crossing of the last of some borders, of which each is in the one before."""
        if not borders:
            return None
        key = walk.key(ends_of(borders[-1])[0])
        if key not in self._all:
            self._all[key] = BorderCrossing(borders[-1], self.of(borders[:-1]))
        return self._all[key]

    def rebuild(self) -> None:
        """Rebuilds all operations that are crossed, and removes what nothing reads any more."""
        crossings = list(self._all.values())  # outer ones first
        for each in reversed(crossings):
            each.rebuild()
        for each in crossings:
            each.drop_unread()


def _drop_stacks(loop: ir.Operation) -> None:
    found = counted_loop(loop)
    if found is None:
        return
    unread = [stack for stack in found.stacks if not is_read(loop.results[stack.number])]
    if unread:
        edit = WhileRewriter(loop)
        for stack in unread:
            edit.drop_stack(stack.number, stack.update)
        loop = edit.apply(Replacements())
        erase(edit.op)
    erase_dead(loop.regions[1].blocks[0])


def _drop_results(computation: ir.Operation) -> None:
    unread = [n for n, result in enumerate(computation.results) if not is_read(result)]
    edit = ManualRewriter(computation)
    for number in unread:
        edit.drop_result(number)
    erase_dead(edit.apply().regions[0].blocks[0])
