"""Backward loops that compute again what their forward loop computed: they read it from stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.autodiff import has_remat_name
from ..analysis.loops.pairs import LoopPair, loop_pairs, nested_pairs
from ..analysis.pricing import Pricing
from ..analysis.value_numbers import ValueNumbers
from ..ir.build import slice_of_stack, zeros
from ..ir.erase import erase
from ..ir.types import tensor_bytes
from ..ir.values import defining_op
from ..ir.while_rewriter import Replacements, WhileRewriter
from .brought import BackwardBody, may_compute_again, paired
from .lines import bypass, erase_unread
from .loops_again import take_places


@dataclass(frozen=True)
class UndoneLoop:
    """A backward loop that now reads what it computed again.

    Attributes:
      location: of the loop.
      spared: the operations that are gone from its body, by name.
      stored_bytes: what the forward loop stacks for it, over all iterations.
    """

    location: ir.Location
    spared: tuple[str, ...]
    stored_bytes: int


def undo_in_loops(block: ir.Block, pricing: Pricing) -> list[UndoneLoop]:
    """Rewrites the loops of a block, and the loops inside of these, in place."""
    undone: list[UndoneLoop] = []
    rewriting = _Rewriting(pricing, undone)
    _Level(lambda: loop_pairs(block), block, ValueNumbers, lambda value, _: value, rewriting).undo()
    return undone


@dataclass(frozen=True)
class _Rewriting:
    """What work costs, and what was done so far."""

    pricing: Pricing
    undone: list[UndoneLoop]


@dataclass(frozen=True)
class _Level:
    """The pairs of the loops of two blocks, or of one.

    Attributes:
      pairs: finds them as they are now.
      block: where the forward loops are.
      numbers: gives the numbers of values around the loops.
      carry: makes a value around the forward loops available to an operation around the backward
        loops.
      rewriting: what is common to all levels.
    """

    pairs: Callable[[], list[LoopPair]]
    block: ir.Block
    numbers: Callable[[], ValueNumbers]
    carry: Callable[[ir.Value, ir.Operation], ir.Value]
    rewriting: _Rewriting

    def undo(self) -> None:
        """Goes through the forward loops in order; a rebuilt loop is where the old one was."""
        pairs = self.pairs()
        for place in range(len(_whiles(self.block)) if pairs else 0):
            group = self._group(place, pairs)
            if len(group) == 1 and self._undo_inside(place, group[0]):
                pairs = self.pairs()
                group = self._group(place, pairs)
            if group and _Rewrite(group, self.numbers, self.carry, self.rewriting).run():
                pairs = self.pairs()

    def _group(self, place: int, pairs: Sequence[LoopPair]) -> list[LoopPair]:
        """The pairs of a forward loop."""
        loop = _whiles(self.block)[place]
        return [
            pair
            for pair in pairs
            if pair.forward.op == loop
            and not has_remat_name(pair.forward.op)
            and not has_remat_name(pair.backward.op)
        ]

    def _undo_inside(self, place: int, pair: LoopPair) -> bool:
        """Whether loops inside of a pair were changed, so that they compute nothing again."""
        inner = pair.forward.body
        if not _whiles(inner):
            return False
        moved = take_places(inner, pair.backward.body, paired(self.numbers(), pair))
        outer = _Carried()

        def current() -> list[LoopPair]:
            return self._group(place, self.pairs())

        _Level(
            lambda: [inside for outside in current() for inside in nested_pairs(outside)],
            inner,
            lambda: paired(self.numbers(), current()[0]),
            outer.hand_over,
            self.rewriting,
        ).undo()
        if outer.values:
            _Rewrite(current(), self.numbers, self.carry, self.rewriting, outer.values).run()
        return bool(moved or outer.values)


def _whiles(block: ir.Block) -> list[ir.Operation]:
    return [view.operation for view in block.operations if view.operation.name == "stablehlo.while"]


class _Carried:
    """Values of a forward body that a loop in the backward body is to read."""

    def __init__(self) -> None:
        self.values: dict[ir.Value, ir.Value] = {}
        """By what stands for it in the backward body."""

    def hand_over(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        with ir.InsertionPoint(before), before.location:
            stand_in = zeros(value.type)
        self.values[stand_in] = value
        return stand_in


class _Rewrite:
    """Lets a forward loop store, and its backward loops read, what these computed again."""

    def __init__(
        self,
        group: Sequence[LoopPair],
        numbers: Callable[[], ValueNumbers],
        carry: Callable[[ir.Value, ir.Operation], ir.Value],
        rewriting: _Rewriting,
        handed_over: dict[ir.Value, ir.Value] | None = None,
    ) -> None:
        self.group, self.carry, self.rewriting = group, carry, rewriting
        self.forward = group[0].forward
        self.values: list[dict[ir.Value, ir.Value]] = []
        self.again: list[tuple[ir.Operation, ...]] = []
        for pair in group:
            if handed_over is not None or not may_compute_again(pair):
                self.values.append(handed_over or {})
                self.again.append(())
                continue
            brought = BackwardBody(pair, paired(numbers(), pair), rewriting.pricing).brought()
            worthwhile = brought.is_worthwhile
            self.values.append(brought.values if worthwhile else {})
            self.again.append(brought.again if worthwhile else ())

    def run(self) -> bool:
        """Rewrites the loops, and whether there was something to do."""
        if not any(self.values) and not any(self.again):
            return False
        for pair, values, ops in zip(self.group, self.values, self.again, strict=True):
            if ops:
                stored = self.forward.trip_count * _bytes(set(values.values()))
                names = tuple(op.name for op in ops)
                self.rewriting.undone.append(UndoneLoop(pair.backward.op.location, names, stored))
        stacks, forward = self._store()
        for pair, values, again in zip(self.group, self.values, self.again, strict=True):
            self._read(pair, values, again, stacks)
        self._drop_unread(forward)
        return True

    def _store(self) -> tuple[dict[ir.Value, ir.Value], ir.Operation]:
        """By value of the forward body its stack, and the forward loop that has it."""
        edit = WhileRewriter(self.forward.op)
        index = self.group[0].residuals[0].stack.update.operands[2]
        numbers = {
            value: edit.add_stack(value, self.forward.trip_count, index, value.location)
            for value in dict.fromkeys(v for values in self.values for v in values.values())
        }
        loop = edit.apply(Replacements())
        erase(edit.op)
        return {v: loop.results[edit.position(n)] for v, n in numbers.items()}, loop

    def _read(
        self,
        pair: LoopPair,
        values: dict[ir.Value, ir.Value],
        again: Sequence[ir.Operation],
        stacks: dict[ir.Value, ir.Value],
    ) -> None:
        """Lets a backward body read slices of the stacks, and erases what it needs no more."""
        edit = WhileRewriter(pair.backward.op)
        carried: dict[ir.Value, int] = {}
        for computed, value in values.items():
            if value not in carried:
                carried[value] = edit.add(self.carry(stacks[value], edit.op))
            stack = edit.body.arguments[carried[value]]
            computed.replace_all_uses_with(_slice(stack, pair.index, computed))
        bypass(again, edit.body)
        makers = [maker for one in values if (maker := defining_op(one)) is not None]
        erase_unread([*again, *(maker for maker in makers if maker not in again)])
        for residual in pair.residuals:
            for number in residual.operands:
                uses = edit.body.arguments[number].uses
                if all(use.owner.operation == edit.terminator for use in uses):
                    edit.drop(number)
        edit.apply(Replacements())
        erase(edit.op)

    def _drop_unread(self, forward: ir.Operation) -> None:
        """Drops the stacks that nothing reads any more."""
        edit = WhileRewriter(forward)
        stored = []
        for stack in {r.stack.number: r.stack for p in self.group for r in p.residuals}.values():
            if not any(True for _ in forward.results[stack.number].uses):
                edit.drop_stack(stack.number, stack.update)
                stored.append(defining_op(stack.update.operands[1]))
        if stored:
            edit.apply(Replacements())
            erase(edit.op)
            erase_unread([op for op in stored if op is not None])


def _slice(stack: ir.Value, index: ir.Value, wanted: ir.Value) -> ir.Value:
    """The slice of a stack that is to be read in place of a value, made where that is."""
    maker = defining_op(wanted)
    assert maker is not None
    with ir.InsertionPoint(maker), wanted.location:
        return stablehlo.reshape(wanted.type, slice_of_stack(stack, index))


def _bytes(values: Iterable[ir.Value]) -> int:
    return sum(tensor_bytes(value.type) or 0 for value in values)
