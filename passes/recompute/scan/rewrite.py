"""Writes the plan of a group of loops, and of the pairs inside it, into the loops.

The forward loops are rebuilt first, each once for all its backward loops; inner loops before outer
ones, because an outer loop stacks the stacks of an inner one. Then the backward loops are rebuilt,
outer loops before inner ones, because an inner loop reads operands of the outer body, and later
loops before earlier ones, because clones of a body are of the planned, unmodified body.

At the end duplicates in a body of a partitioned program are merged (`merge_clones`). A clone of a
layer reads its parameters by slices of its own. XLA merges equal slices, but only after it has
partitioned the program: until then it gathers the parameters for each of them.

Before::

    %0 = stablehlo.dynamic_slice %weights, %index, %zero, %zero
    %1 = stablehlo.dot_general %gradient, %0
    %2 = stablehlo.dynamic_slice %weights, %index, %zero, %zero  // cloned
    %3 = stablehlo.dot_general %stream, %2                       // cloned

After::

    %0 = stablehlo.dynamic_slice %weights, %index, %zero, %zero
    %1 = stablehlo.dot_general %gradient, %0
    %3 = stablehlo.dot_general %stream, %0                       // cloned
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ...analysis.autodiff import has_remat_name
from ...analysis.loops.pairs import Residual
from ...analysis.purity import erase_dead, is_cheap
from ...analysis.value_numbers import ValueNumbers
from ...ir import moves, walk
from ...ir.build import integer_like
from ...ir.clone import remap_operands
from ...ir.erase import erase
from ...ir.locations import rematerialized
from ...ir.mesh import is_partitioned
from ...ir.ops import facts_of
from ...ir.shardings import CONSTRAINT
from ...ir.values import defining_op
from ...ir.while_rewriter import Replacements, WhileRewriter
from ..block.rewrite import clone_before
from .plan import Link, PairPlan, ScanPlan
from .sites import BodySite


def merge_clones(block: ir.Block) -> None:
    """Replaces cheap clones of a block by equal earlier operations of it, as XLA does later.

    The first of equal sharding constraints replaces all: each would exchange its operand.
    """
    numbers = ValueNumbers(through_barriers=False)
    first: dict[int, ir.Value] = {}
    ops = [view.operation for view in block.operations]
    names = {op.name for op in ops if op.name == CONSTRAINT or has_remat_name(op)}
    for op in ops:
        if op.name not in names:
            continue  # it equals none that may go
        results: list[ir.Value] = list(op.results)
        earlier = [first.setdefault(numbers.of(value), value) for value in results]
        if not results or earlier == results:
            continue
        if op.name == CONSTRAINT or (has_remat_name(op) and is_cheap(op)):
            for value, same in zip(results, earlier, strict=True):
                value.replace_all_uses_with(same)


def apply_scan(plan: ScanPlan, replaced: Replacements) -> None:
    """Rebuilds the loops, and records the new loops and their results in ``replaced``.

    The old loops stay, empty and unused, and the blocks keep dead operations: ``finish_scans``
    erases both once all plans of the module are applied.
    """
    inside = _Inside(like=replaced.like)
    by_forward: dict[ir.Value, list[PairPlan]] = {}
    by_backward: dict[ir.Value, list[PairPlan]] = {}
    for part in plan.pairs:
        by_forward.setdefault(part.pair.forward.op.results[0], []).append(part)
        by_backward.setdefault(part.pair.backward.op.results[0], []).append(part)
    forwards = {
        loop: _rebuild_forward(parts, replaced, inside, parts[0].pair.forward.op)
        for loop, parts in by_forward.items()
    }
    for parts in sorted(by_backward.values(), key=functools.cmp_to_key(_later_first)):
        given = [(part, forwards[part.pair.forward.op.results[0]]) for part in parts]
        _BackwardLoop(given, replaced, inside, None).rebuild()
    erase(*inside.ops)
    replaced.bodies += [replaced.op(loop).regions[1].blocks[0] for loop in plan.loops]


def _later_first(one: list[PairPlan], other: list[PairPlan]) -> int:
    first, second = one[0].pair.backward.op, other[0].pair.backward.op
    return 1 if first.is_before_in_block(second) else -1


def finish_scans(replaced: Replacements) -> set[Hashable]:
    """Erases the old loops, and the operations that are dead around and inside the new ones.

    Returns the keys of the dead loops: a new one is dead as well where all its results that were
    read are recomputed.
    """
    erased: set[Hashable] = set()
    blocks = dict.fromkeys(old.block for old in replaced.ops)
    # An old backward loop still reads the dropped stacks of its old forward loop.
    for old in reversed(replaced.ops):
        _erase_with_readers(old)
    for block in replaced.bodies:
        if is_partitioned(block.owner.operation):
            merge_clones(block)
        erased |= _erase_dead_inside(block)
    # Inner blocks first: dead operations in them may be the only readers of an outer value.
    for block in sorted(blocks, key=lambda block: -len(list(walk.ancestors(block)))):
        erased |= erase_dead(block)
    return erased


def _erase_dead_inside(block: ir.Block) -> set[Hashable]:
    """Erases dead operations of a block, and then of the loops and branches left in it."""
    erased = erase_dead(block)
    for view in block.operations:
        if facts_of(view.operation.name).branches:
            for region in view.operation.regions:
                for inner in region.blocks:
                    erased |= _erase_dead_inside(inner)
    return erased


def _erase_with_readers(op: ir.Operation) -> None:
    """Erases an operation and its users. Raises ValueError if one of them is not dead."""
    if op.name in ("stablehlo.return", "func.return", "sdy.return"):
        raise ValueError("a value that was to go is still returned")
    _erase_readers(op.results)
    erase(op)


def _erase_readers(values: Iterable[ir.Value]) -> None:
    """Erases the users of the values, which are dead."""
    for value in values:
        for reader in dict.fromkeys(use.owner.operation for use in value.uses):
            _erase_with_readers(reader)


def _erase_slices(stack: ir.Value, returned: ir.Operation) -> None:
    """Erases the users of a stack, which are dead, but not the terminator that returns it."""
    readers = (use.owner.operation for use in stack.uses)
    for reader in dict.fromkeys(reader for reader in readers if reader != returned):
        _erase_with_readers(reader)


@dataclass
class _Inside(Replacements):
    """The forward loops that were rebuilt inside of outermost ones.

    ``edits`` are those of all forward loops, by the old loop's first result.
    """

    edits: dict[ir.Value, WhileRewriter] = field(default_factory=dict)

    def position(self, loop: ir.Operation, number: int) -> int:
        """Returns the number of a carry of a loop that may have been rebuilt as a forward loop."""
        edit = self.edits.get(loop.results[0])
        return number if edit is None else edit.position(number)


@dataclass
class _Forward:
    """A rebuilt forward loop.

    ``counter`` is the body's argument that counts iterations; ``outer`` maps invariant arguments of
    the body to the loop's operands; ``stacks`` maps values of the body to the loop's results that
    stack them.
    """

    edit: WhileRewriter
    loop: ir.Operation
    counter: ir.Value
    outer: dict[ir.Value, ir.Value]
    stacks: dict[ir.Value, ir.Value]
    inner: list[_Forward]

    def result(self, number: int) -> ir.Value:
        """Returns the loop's result for a carry, by its number in the original loop."""
        return self.loop.results[self.edit.position(number)]


def _rebuild_forward(
    plans: list[PairPlan], replaced: Replacements, inside: _Inside, outermost: ir.Operation
) -> _Forward:
    """Rebuilds the forward loop of some pairs, and the planned loops in its body.

    ``replaced`` records the new loop, ``inside`` those in its body. The old loops of its body are
    moved before the old ``outermost`` one, because the new loop may be cloned.
    """
    pair, parts = plans[0].pair, [part for plan in plans for part in plan.inner]
    inner = [_rebuild_forward([part], inside, inside, outermost) for part in parts]
    edit = WhileRewriter(pair.forward.op)
    arguments, operands = list(edit.body.arguments), list(edit.operands)
    alike = [stack for stack in pair.forward.stacks if stack.slope == pair.slope]
    trip_count, index = pair.forward.trip_count, alike[0].update.operands[2]
    dropped = {r.stack.number: r.stack.update for plan in plans for r in plan.dropped}
    for number, update in dropped.items():
        edit.drop_stack(number, update)
    numbers = {
        inside.value(value): edit.add_stack(inside.value(value), trip_count, index)
        if stack is None
        else stack.number
        for value, stack in {value: stack for plan in plans for value, stack in plan.stored}.items()
    }
    there = {
        inside.value(stack.value): stack.number
        for stack in reversed(alike)
        if stack.number not in edit.dropped
    }
    for part, rebuilt in zip(parts, inner, strict=True):
        for value in () if part.rerun else _handed_on(part, rebuilt):
            if value not in numbers:
                known = there.get(value)
                numbers[value] = (
                    edit.add_stack(value, trip_count, index) if known is None else known
                )
    outer = {
        argument: operand
        for number, (argument, operand) in enumerate(zip(arguments, operands, strict=True))
        if number in pair.forward.invariant
    }
    loop = edit.apply(replaced)
    # The location keeps a second run of the pass from changing the bodies.
    loop.location = rematerialized(loop.location)
    for part in parts:
        _erase_readers(part.pair.forward.op.results)
        moves.move_into(outermost, [part.pair.forward.op])
    stacks = {value: loop.results[edit.position(number)] for value, number in numbers.items()}
    counter = arguments[pair.forward.counter]
    inside.edits[pair.forward.op.results[0]] = edit
    return _Forward(edit, loop, counter, outer, stacks, inner)


def _handed_on(plan: PairPlan, forward: _Forward) -> list[ir.Value]:
    """Returns the stacks of a rebuilt loop that are no operands of its backward loop yet."""
    known = {residual.stored for residual in _kept_residuals(plan)}
    return [stack for value, stack in forward.stacks.items() if value not in known]


def _kept_residuals(plan: PairPlan) -> list[Residual]:
    dropped = {residual.stack.number for residual in plan.dropped}
    return [residual for residual in plan.pair.residuals if residual.stack.number not in dropped]


class _BackwardLoop:
    """A backward loop being rebuilt, for all planned pairs that it is in."""

    def __init__(
        self,
        given: list[tuple[PairPlan, _Forward]],
        replaced: Replacements,
        inside: _Inside,
        around: _BackwardBody | None,
    ) -> None:
        """``given`` are the plans and the rebuilt forward loops, in the order of these."""
        self.replaced, self.inside, self.around = replaced, inside, around
        self.planned = given[0][0].pair.backward
        # A loop that is the forward loop of other pairs was rebuilt as such.
        now = replaced if around is None else inside
        self.edit = WhileRewriter(now.op(self.planned.op))
        self.bodies: list[_BackwardBody] = []
        for plan, forward in given:
            self.bodies.append(_BackwardBody(plan, forward, self))

    def rebuild(self) -> ir.Operation:
        """Rebuilds the loop as planned, and returns it."""
        for body in self.bodies:
            body.exchange_stacks()
        for _, body, site in sorted(self._sites(), key=lambda each: each[0]):
            body.write(site)
        gone = {
            self.position(number): None
            for body in self.bodies
            for residual in body.plan.dropped
            for number in residual.operands
        }
        for number in gone:
            _erase_slices(self.edit.body.arguments[number], self.edit.terminator)
            self.edit.drop(number)
        loop = self.edit.apply(self.replaced)
        loop.location = rematerialized(loop.location)
        return loop

    def position(self, number: int) -> int:
        """Returns the number in the current loop of a carry of the planned loop."""
        return self.inside.position(self.planned.op, number)

    def _sites(self) -> Iterator[tuple[int, _BackwardBody, BodySite]]:
        """Yields the sites of all pairs, each with its operation's place in the body."""
        places = {
            walk.key(view.operation): place for place, view in enumerate(self.edit.body.operations)
        }
        for body in self.bodies:
            for site in body.plan.sites:
                yield places[walk.key(self.inside.op(site.op))], body, site

    def argument(self, outer: ir.Value) -> ir.Value:
        """Returns the body's argument for a value outside the loop, an invariant carry, added if
        needed."""
        if outer not in self.invariant:
            self.invariant[outer] = self.edit.add(outer)
        return self.edit.body.arguments[self.invariant[outer]]

    @functools.cached_property
    def invariant(self) -> dict[ir.Value, int]:
        """Returns, by operand of the loop, its invariant carry, added ones included.

        Computed on first use, when the loop's operands are final.
        """
        found: dict[ir.Value, int] = {}
        for number in map(self.position, sorted(self.planned.invariant)):
            found.setdefault(self.edit.operands[number], number)
        return found


class _BackwardBody:
    """Writes slices and clones of one forward body into a backward body."""

    def __init__(self, plan: PairPlan, forward: _Forward, loop: _BackwardLoop) -> None:
        self.plan, self.forward, self.loop = plan, forward, loop
        self.inside = loop.inside
        self.counter = forward.counter
        self.known: dict[ir.Value, ir.Value] = {}
        self.residuals = {
            self.inside.value(residual.stored): residual for residual in _kept_residuals(plan)
        }
        self.links = {link.read: link for link in plan.links}
        self.again = dict(plan.again)
        self.inner = list(zip(plan.inner, forward.inner, strict=True))

    def exchange_stacks(self) -> None:
        """Lets the loop read the stacks of a forward loop that is rerun."""
        if self.plan.rerun:
            for residual in _kept_residuals(self.plan):
                for number in residual.operands:
                    stack = self.forward.result(residual.stack.number)
                    self.loop.edit.operands[self.loop.position(number)] = self._outside(stack)

    def write(self, site: BodySite) -> None:
        """Inserts the slices and clones of a site, and lets its operation read them.

        If that is the backward loop of an inner pair, it is rebuilt.
        """
        anchor = self.inside.op(site.op)
        initial = {inner.loop: inner.edit.initial for inner in self.forward.inner}
        loops = (self.inside.op(op) for op in site.cloned)
        cloned = [op for loop in loops for op in (*initial.get(loop, ()), loop)]
        made = {result for op in cloned for result in op.results}
        for op in cloned:
            for value in walk.values_read(op):
                if value not in made:
                    self._provide(value, anchor)
        clones = clone_before(anchor, cloned, self.known)
        self.inside.note_clones(clones)
        self.known |= clones
        exchanged = {}
        for read, planned in site.reads:
            value = self.inside.value(planned)
            self._provide(value, anchor)
            exchanged[read] = self.known[value]
        remap_operands(anchor, exchanged)
        here = next((pair for pair in self.inner if pair[0].pair.backward.op == site.op), None)
        if here is not None:
            self.inner.remove(here)
            rebuilt = Replacements(like=self.inside.like)
            _BackwardLoop([here], rebuilt, self.inside, self).rebuild()
            erase(*rebuilt.ops)

    def _provide(self, value: ir.Value, before: ir.Operation) -> None:
        """Makes a value of the forward body, or from outside, available in the backward body."""
        if value not in self.known:
            self.known[value] = self._find(value, before)

    def _find(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        forward = self.forward
        if value in self.again:
            return self.again[value]
        if value in self.residuals:
            residual = self.residuals[value]
            stack = self.loop.edit.body.arguments[self.loop.position(residual.operands[0])]
            return self._read(residual, before) or self._slice(value, stack, before)
        if value in forward.stacks:
            stack = self.loop.argument(self._outside(forward.stacks[value]))
            return self._slice(value, stack, before)
        if value == self.counter and not self.plan.pair.forward.is_open:
            return self._forward_counter(before)
        if value in forward.outer:
            return self.loop.argument(self._outside(forward.outer[value]))
        if value in self.links:
            return self._follow(self.links[value], before)
        return self._outside(value)

    def _follow(self, link: Link, before: ir.Operation) -> ir.Value:
        """Returns the value that the forward body reads of an earlier loop, from the pair with that
        loop."""
        body = next(b for b in self.loop.bodies if b.plan.pair.forward.op == link.forward)
        stored = self.inside.value(link.stored)
        body._provide(stored, before)
        return body.known[stored]

    def _outside(self, value: ir.Value) -> ir.Value:
        """Returns the value around the backward loop that equals one around the forward loop."""
        around = self.loop.around
        if around is None:
            return self.loop.replaced.value(value)
        value = self.inside.value(value)
        around._provide(value, self.loop.edit.op)
        return around.known[value]

    def _read(self, residual: Residual, before: ir.Operation) -> ir.Value | None:
        """Returns an existing slice of a stack in the body, if it is before ``before``."""
        for read in residual.reads:
            op = defining_op(read)
            if op is not None and op.is_before_in_block(before):
                return read
        return None

    def _slice(self, value: ir.Value, stack: ir.Value, before: ir.Operation) -> ir.Value:
        type_ = ir.RankedTensorType(value.type)
        sizes = [1, *ir.RankedTensorType(stack.type).shape[1:]]
        with ir.InsertionPoint(before), rematerialized(value.location):
            zero = integer_like(self.plan.pair.index, 0)
            starts = [self.plan.pair.index, *[zero] * (len(sizes) - 1)]
            slice_ = stablehlo.DynamicSliceOp(stack, starts, sizes).result
            reshaped = slice_ if slice_.type == type_ else stablehlo.ReshapeOp(type_, slice_).result
        self.inside.note_like([slice_, reshaped], value)
        return reshaped

    def _forward_counter(self, before: ir.Operation) -> ir.Value:
        """Returns the counter of the forward iteration that corresponds to the backward one."""
        pair = self.plan.pair
        if (pair.slope, pair.offset) == (1, 0):
            return pair.index
        with ir.InsertionPoint(before), rematerialized(before.location):
            last = integer_like(pair.index, pair.offset)
            return stablehlo.SubtractOp(last, pair.index).result
