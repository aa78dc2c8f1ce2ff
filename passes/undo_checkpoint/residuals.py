"""Makes backward loops read the values that they recompute from their forward loop's stacks.

`BackwardBody` says which values of the two bodies are equal, and which of them to store.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.autodiff import has_remat_name
from ..analysis.constants import before_barriers
from ..analysis.keep import KeepNetwork
from ..analysis.loops.paired import may_compute_again, paired, results_in
from ..analysis.loops.pairs import LoopPair, loop_pairs, nested_pairs
from ..analysis.pricing import Pricing
from ..analysis.purity import erase_unread, is_cheap
from ..analysis.value_numbers import ValueNumbers, has_no_effect
from ..ir import walk
from ..ir.build import slice_of_stack, zeros
from ..ir.erase import erase
from ..ir.ops import BARRIER
from ..ir.types import tensor_bytes
from ..ir.values import defining_op, is_read
from ..ir.while_rewriter import Replacements, WhileRewriter
from .merge import bypass, take_places

_UNIT_S = 1e-12
"""The time of a unit of the cut's weights."""


@dataclass(frozen=True)
class Brought:
    """The values that a backward body will read instead of computing them.

    Attributes:
      values: by value of the backward body, the value of the forward body that it equals.
      again: the operations of the backward body that compute what the forward body computed.
    """

    values: dict[ir.Value, ir.Value]
    again: tuple[ir.Operation, ...]

    @property
    def is_worthwhile(self) -> bool:
        """Whether more than cheap work is saved."""
        return not all(is_cheap(op) for op in self.again)


class BackwardBody:
    """A backward body, and which of its values equal values of the forward body."""

    def __init__(self, pair: LoopPair, numbers: ValueNumbers, pricing: Pricing) -> None:
        self.pair, self.numbers, self.pricing = pair, numbers, pricing
        self.ops = [view.operation for view in pair.backward.body.operations]
        self._reads = {read for residual in pair.residuals for read in residual.reads}

    @functools.cached_property
    def forward_values(self) -> dict[int, ir.Value]:
        """Returns the first value of the forward body with each number."""
        found: dict[int, ir.Value] = {}
        body = self.pair.forward.body
        for value in (*body.arguments, *results_in(body)):
            found.setdefault(self.numbers.of(value), value)
        return found

    def may_spare_more_than_cheap_work(self) -> bool:
        """Whether the forward body has the result of an operation that is not cheap, too; most
        bodies have no such operation, and to number all of both takes longer."""
        expensive = [op for op in self.ops if len(op.results) and not is_cheap(op)]
        body = self.pair.forward.body
        handed_on = (
            value
            for op in (view.operation for view in body.operations)
            for value in op.results
            if not is_cheap(op) or self.numbers.same(value) is not None
        )
        there = set(map(self.numbers.of, (*body.arguments, *handed_on)))
        return any(self.numbers.of(op.results[0]) in there for op in expensive)

    def brought(self) -> Brought:
        """Selects the values to store so that a step takes the least time.

        A value costs the time to write and to read it, or that of its operation once more, whose
        operands have to be available then. The least sum is a minimum cut.
        """
        again = [op for op in self.ops if self._is_again(op)]
        computed = {result for op in again for result in op.results}
        wanted = {
            value
            for op in self.ops
            if op.name != BARRIER and not (len(op.results) and op.results[0] in computed)
            for value in map(before_barriers, walk.values_read(op))
            if value in computed
        }
        stored = self._stored(again, wanted)
        values: dict[ir.Value, ir.Value] = {}
        spared = []
        for op in reversed(again):
            here = [result for result in op.results if result in wanted]
            if not stored.issuperset(here):
                wanted.update(map(before_barriers, walk.values_read(op)))
                continue
            values |= {one: self.forward_values[self.numbers.of(one)] for one in here}
            spared.append(op)
        return Brought(values, tuple(reversed(spared)))

    def _is_again(self, op: ir.Operation) -> bool:
        """Whether the operation computes what the forward body computed."""
        return (
            len(op.results) > 0
            and op.name != BARRIER
            and has_no_effect(op)
            and self._reads.isdisjoint(op.results)
            and self.numbers.same(op.results[0]) is None
            and all(self.numbers.of(result) in self.forward_values for result in op.results)
        )

    def _stored(self, again: list[ir.Operation], wanted: Collection[ir.Value]) -> set[ir.Value]:
        """Returns the values to store, of those that some operations compute again."""
        # The cost of all work once more: values that cannot be stored are computed again.
        most = sum(int(self.pricing.seconds(op) / _UNIT_S + 1) for op in again)
        network = KeepNetwork[ir.Value](never=most)
        for op in again:
            read = list(dict.fromkeys(map(before_barriers, walk.values_read(op))))
            for value in read:
                if value not in network.vertices:
                    network.add(value, 0)
            for result in op.results:
                network.add(result, self._weight(op, result, most))
            network.make(op.results, read, int(self.pricing.seconds(op) / _UNIT_S))
        network.want(wanted)
        return network.values_at(network.lightest())

    def _weight(self, op: ir.Operation, value: ir.Value, most: int) -> int:
        """Returns the cost of storing a value, ``most`` where it cannot be stored."""
        maker = defining_op(self.pair.index)
        is_sized = tensor_bytes(value.type) is not None
        if not is_sized or not (maker is None or maker.is_before_in_block(op)):
            return most
        speed, size_bytes = self.pricing.speed, self.pricing.sizes.of(value).bytes
        return int(max(2 * size_bytes / speed.bytes_per_s, speed.kernel_s) / _UNIT_S)


@dataclass(frozen=True)
class UndoneLoop:
    """A backward loop that now reads the values that it recomputed before.

    Attributes:
      location: the loop's location.
      spared: the operations that were removed from its body, by name.
      stored_bytes: the bytes that the forward loop stacks for it, over all iterations.
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
    """The prices of work, and the changes so far."""

    pricing: Pricing
    undone: list[UndoneLoop]


@dataclass(frozen=True)
class _Level:
    """The pairs of the loops of two blocks, or of one.

    Attributes:
      pairs: finds the current pairs.
      block: where the forward loops are.
      numbers: gives the numbers of values around the loops.
      carry: makes a value around the forward loops available to an operation around the backward
        loops.
      rewriting: the state that all levels share.
    """

    pairs: Callable[[], list[LoopPair]]
    block: ir.Block
    numbers: Callable[[], ValueNumbers]
    carry: Callable[[ir.Value, ir.Operation], ir.Value]
    rewriting: _Rewriting

    def undo(self) -> None:
        """Goes through the forward loops in order; a rebuilt loop has the place of the old one.

        Pairs that share no loop with others go first, all of them read before any is rewritten: to
        find the remaining pairs anew after each takes time quadratic in their number.
        """
        pairs = self.pairs()
        if not pairs:
            return
        groups, numbers = self._alone(pairs), self.numbers()
        rewrites = [
            _Rewrite(group, lambda: numbers, self.carry, self.rewriting)
            for group in groups.values()
            if group
        ]
        left = [n for n, loop in enumerate(_whiles(self.block)) if walk.key(loop) not in groups]
        changed = [rewrite.run() for rewrite in rewrites]
        if left and any(changed):
            pairs = self.pairs()
        for place in left:
            group = self._group(place, pairs)
            if len(group) == 1 and self._undo_inside(place, group[0]):
                pairs = self.pairs()
                group = self._group(place, pairs)
            if group and _Rewrite(group, self.numbers, self.carry, self.rewriting).run():
                pairs = self.pairs()

    def _alone(self, pairs: Sequence[LoopPair]) -> dict[Hashable, list[LoopPair]]:
        """Returns, by forward loop, in order, the pair that shares no loop and has none inside."""
        loops = Counter(
            walk.key(loop.op) for pair in pairs for loop in (pair.forward, pair.backward)
        )
        return {
            walk.key(pair.forward.op): [pair] if _is_of_the_user(pair) else []
            for pair in pairs
            if loops[walk.key(pair.forward.op)] == 1
            and loops[walk.key(pair.backward.op)] == 1
            and not _whiles(pair.forward.body)
        }

    def _group(self, place: int, pairs: Sequence[LoopPair]) -> list[LoopPair]:
        """Returns the pairs of a forward loop."""
        loop = _whiles(self.block)[place]
        return [pair for pair in pairs if pair.forward.op == loop and _is_of_the_user(pair)]

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


def _is_of_the_user(pair: LoopPair) -> bool:
    """Whether `remat` made none of the pair's loops."""
    return not has_remat_name(pair.forward.op) and not has_remat_name(pair.backward.op)


def _whiles(block: ir.Block) -> list[ir.Operation]:
    return [view.operation for view in block.operations if view.operation.name == "stablehlo.while"]


class _Carried:
    """Values of a forward body that a loop in the backward body will read."""

    def __init__(self) -> None:
        self.values: dict[ir.Value, ir.Value] = {}
        """The values of the forward body, by their replacements."""

    def hand_over(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        with ir.InsertionPoint(before), before.location:
            stand_in = zeros(value.type)
        self.values[stand_in] = value
        return stand_in


class _Rewrite:
    """Makes a forward loop store, and its backward loops read, the values that these recomputed."""

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
            body = BackwardBody(pair, paired(numbers(), pair), rewriting.pricing)
            brought = body.brought() if body.may_spare_more_than_cheap_work() else None
            worthwhile = brought is not None and brought.is_worthwhile
            self.values.append(brought.values if brought and worthwhile else {})
            self.again.append(brought.again if brought and worthwhile else ())

    def run(self) -> bool:
        """Rewrites the loops, and returns whether there was something to do."""
        if not any(self.values) and not any(self.again):
            return False
        for pair, values, ops in zip(self.group, self.values, self.again, strict=True):
            if ops:
                sizes = self.rewriting.pricing.sizes
                each_bytes = sum(sizes.of(value).bytes for value in set(values.values()))
                stored = self.forward.trip_count * each_bytes
                names = tuple(op.name for op in ops)
                self.rewriting.undone.append(UndoneLoop(pair.backward.op.location, names, stored))
        stacks, forward = self._store()
        for pair, values, again in zip(self.group, self.values, self.again, strict=True):
            self._read(pair, values, again, stacks)
        self._drop_unread(forward)
        return True

    def _store(self) -> tuple[dict[ir.Value, ir.Value], ir.Operation]:
        """Returns, by value of the forward body, its stack, and the forward loop that has it."""
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
        """Lets a backward body read slices of the stacks, and erases unneeded operations."""
        edit = WhileRewriter(pair.backward.op)
        carried: dict[ir.Value, int] = {}
        for computed, value in values.items():
            if value not in carried:
                carried[value] = edit.add(self.carry(stacks[value], edit.op))
            stack = edit.body.arguments[carried[value]]
            computed.replace_all_uses_with(_slice(stack, pair.index, computed))
        bypass(again, edit.body)
        makers = [maker for one in values if (maker := defining_op(one)) is not None]
        erase_unread([*again, *(maker for maker in makers if maker not in again)], has_no_effect)
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
            if not is_read(forward.results[stack.number]):
                edit.drop_stack(stack.number, stack.update)
                stored.append(defining_op(stack.update.operands[1]))
        if stored:
            edit.apply(Replacements())
            erase(edit.op)
            erase_unread([op for op in stored if op is not None], has_no_effect)


def _slice(stack: ir.Value, index: ir.Value, wanted: ir.Value) -> ir.Value:
    """Returns the slice of a stack that replaces a value, inserted at the value's place."""
    maker = defining_op(wanted)
    assert maker is not None
    with ir.InsertionPoint(maker), wanted.location:
        return stablehlo.reshape(wanted.type, slice_of_stack(stack, index))
