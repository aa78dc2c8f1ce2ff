"""Rebuilds a pair of loops as planned, and the pairs inside it: the editing half of ``scan``.

First the forward loops, inner ones first: what an inner one stacks, the outer one stacks again.
Then the backward loops, outer ones first: an inner one is given what the body around it reads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.analysis.loops.counted import defining_op
from hloom.passes.analysis.loops.pairs import Residual
from hloom.passes.ir import walk
from hloom.passes.ir.clone import remap_operands
from hloom.passes.ir.locations import rematerialized
from hloom.passes.ir.ops import facts_of
from hloom.passes.ir.while_rewriter import Replacements, WhileRewriter, integer_like
from hloom.passes.remat.block.rewrite import clone_before, erase_dead
from hloom.passes.remat.scan.plan import ScanPlan
from hloom.passes.remat.scan.sites import BodySite


def apply_scan(plan: ScanPlan, replaced: Replacements) -> None:
    """Rebuilds both loops and notes the new ones and their results in ``replaced``.

    The old loops are left empty and unused, their blocks with dead operations: ``finish_scans``
    erases both, once all plans of the module are applied.
    """
    inside = Replacements()
    forward = _rebuild_forward(plan, replaced, inside, plan.pair.forward.op)
    backward = _BackwardBody(plan, forward, replaced, inside, None).rebuild()
    for old in reversed(inside.ops):
        old.erase()
    replaced.bodies += [forward.loop.regions[1].blocks[0], backward.regions[1].blocks[0]]


def finish_scans(replaced: Replacements) -> None:
    """Erases what rewritten loops have left: the old loops, and what is dead around and inside."""
    blocks = [old.block for old in replaced.ops]
    # An old backward loop still reads the dropped stacks of its old forward loop.
    for old in reversed(replaced.ops):
        _erase_with_readers(old)
    for block in replaced.bodies:
        _erase_dead_inside(block)
    for block in blocks:
        erase_dead(block)


def _erase_dead_inside(block: ir.Block) -> None:
    """Erases what is dead in a block, and then in the loops and branches that are left of it."""
    erase_dead(block)
    for view in block.operations:
        if facts_of(view.operation.name).branches:
            for region in view.operation.regions:
                for inner in region.blocks:
                    _erase_dead_inside(inner)


def _erase_with_readers(op: ir.Operation) -> None:
    """Erases an operation and what reads it. Raises ValueError where that is not dead."""
    if op.name == "stablehlo.return":
        raise ValueError("a value that was to go is still returned")
    _erase_readers(op.results)
    op.erase()


def _erase_readers(values: Iterable[ir.Value]) -> None:
    """Erases what reads the values, all of it dead."""
    for value in values:
        for reader in dict.fromkeys(use.owner.operation for use in value.uses):
            _erase_with_readers(reader)


def _erase_slices(stack: ir.Value, returned: ir.Operation) -> None:
    """Erases what reads a stack in a body that returns it, all of it dead."""
    readers = (use.owner.operation for use in stack.uses)
    for reader in dict.fromkeys(reader for reader in readers if reader != returned):
        _erase_with_readers(reader)


@dataclass
class _Forward:
    """A rebuilt forward loop.

    ``counter`` is the argument of its body that counts; ``outer`` has for the invariant
    arguments of the body what the loop is given for them; ``stacks`` has for values of the body the
    stacks that the loop returns.
    """

    edit: WhileRewriter
    loop: ir.Operation
    counter: ir.Value
    outer: dict[ir.Value, ir.Value]
    stacks: dict[ir.Value, ir.Value]
    inner: list[_Forward]

    def result(self, number: int) -> ir.Value:
        """The loop's result for a carry of the loop as planned."""
        return self.loop.results[self.edit.position(number)]


def _rebuild_forward(
    plan: ScanPlan, replaced: Replacements, inside: Replacements, outermost: ir.Operation
) -> _Forward:
    """``replaced`` notes the new loop, ``inside`` those in its body.

    The old ones of its body go before the old ``outermost`` one: the new loop may be cloned.
    """
    inner = [_rebuild_forward(part, inside, inside, outermost) for part in plan.inner]
    pair = plan.pair
    edit = WhileRewriter(pair.forward.op)
    arguments, operands = list(edit.body.arguments), list(edit.operands)
    trip_count, index = pair.forward.trip_count, pair.links[0].stack.update.operands[2]
    for link in plan.dropped:
        edit.drop_stack(link.stack.number, link.stack.update)
    numbers = {
        inside.value(value): edit.add_stack(inside.value(value), trip_count, index)
        if stack is None
        else stack.number
        for value, stack in plan.stored
    }
    there = {
        inside.value(stack.value): stack.number
        for stack in reversed(pair.forward.stacks)
        if stack.slope == pair.slope and stack.number not in edit.dropped
    }
    for part, rebuilt in zip(plan.inner, inner, strict=True):
        for value in () if part.rerun else _handed_on(part, rebuilt):
            if value not in numbers:
                number = there.get(value)
                numbers[value] = (
                    edit.add_stack(value, trip_count, index) if number is None else number
                )
    outer = {
        argument: operand
        for number, (argument, operand) in enumerate(zip(arguments, operands, strict=True))
        if number in pair.forward.invariant
    }
    loop = edit.apply(replaced)
    # The next run is to leave the bodies alone, even ones in which nothing was put.
    loop.location = rematerialized(loop.location)
    for part in plan.inner:
        _erase_readers(part.pair.forward.op.results)
        part.pair.forward.op.move_before(outermost)
    stacks = {value: loop.results[edit.position(number)] for value, number in numbers.items()}
    counter = arguments[pair.forward.counter]
    return _Forward(edit, loop, counter, outer, stacks, inner)


def _handed_on(plan: ScanPlan, forward: _Forward) -> list[ir.Value]:
    """The stacks of a rebuilt loop that its backward loop is not given already."""
    linked = {link.stored for link in _kept_links(plan)}
    return [stack for value, stack in forward.stacks.items() if value not in linked]


def _kept_links(plan: ScanPlan) -> list[Residual]:
    dropped = {link.stack.number for link in plan.dropped}
    return [link for link in plan.pair.links if link.stack.number not in dropped]


class _BackwardBody:
    """Writes slices and clones into the backward body of a pair."""

    def __init__(
        self,
        plan: ScanPlan,
        forward: _Forward,
        replaced: Replacements,
        inside: Replacements,
        around: _BackwardBody | None,
    ) -> None:
        """``inside`` has the forward loops that were rebuilt inside the outermost one."""
        self.plan, self.forward, self.around = plan, forward, around
        self.replaced, self.inside = replaced, inside
        self.edit = WhileRewriter(plan.pair.backward.op)
        self.counter = forward.counter
        self.known: dict[ir.Value, ir.Value] = {}
        self.links = {inside.value(link.stored): link for link in _kept_links(plan)}

    def rebuild(self) -> ir.Operation:
        """The new backward loop, in whose body everything is as planned."""
        plan = self.plan
        if plan.rerun:
            for link in _kept_links(plan):
                for number in link.operands:
                    stack = self.forward.result(link.stack.number)
                    self.edit.operands[number] = self._outside(stack)
        inner = list(zip(plan.inner, self.forward.inner, strict=True))
        for site in plan.sites:
            self._write(site)
            here = next((pair for pair in inner if pair[0].pair.backward.op == site.op), None)
            if here is not None:
                inner.remove(here)
                _BackwardBody(*here, Replacements(), self.inside, self).rebuild()
                site.op.erase()
        for link in plan.dropped:
            for number in link.operands:
                _erase_slices(self.edit.body.arguments[number], self.edit.terminator)
                self.edit.drop(number)
        loop = self.edit.apply(self.replaced)
        loop.location = rematerialized(loop.location)
        return loop

    def _write(self, site: BodySite) -> None:
        """Puts what the site needs before it and lets it read that."""
        initial = {inner.loop: inner.edit.initial for inner in self.forward.inner}
        loops = (self.inside.op(op) for op in site.cloned)
        cloned = [op for loop in loops for op in (*initial.get(loop, ()), loop)]
        made = {result for op in cloned for result in op.results}
        for op in cloned:
            for value in walk.values_read(op):
                if value not in made:
                    self._provide(value, site.op)
        self.known |= clone_before(site.op, cloned, self.known)
        exchanged = {}
        for read, planned in site.reads:
            value = self.inside.value(planned)
            self._provide(value, site.op)
            exchanged[read] = self.known[value]
        remap_operands(site.op, exchanged)

    def _provide(self, value: ir.Value, before: ir.Operation) -> None:
        """Makes a value of the forward body, or outside it, known in the backward body."""
        if value not in self.known:
            self.known[value] = self._find(value, before)

    def _find(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        forward = self.forward
        if value in self.links:
            link = self.links[value]
            stack = self.edit.body.arguments[link.operands[0]]
            return self._read(link, before) or self._slice(value, stack, before)
        if value in forward.stacks:
            stack = self._argument(self._outside(forward.stacks[value]))
            return self._slice(value, stack, before)
        if value == self.counter and not self.plan.pair.forward.is_open:
            return self._forward_counter(before)
        if value in forward.outer:
            return self._argument(self._outside(forward.outer[value]))
        return self._outside(value)

    def _outside(self, value: ir.Value) -> ir.Value:
        """What a value around the forward loop is around the backward loop."""
        if self.around is None:
            return self.replaced.value(value)
        value = self.inside.value(value)
        self.around._provide(value, self.plan.pair.backward.op)
        return self.around.known[value]

    def _read(self, link: Residual, before: ir.Operation) -> ir.Value | None:
        """The slice that the body has of a stack already, where it stands early enough."""
        for read in link.reads:
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
            if slice_.type == type_:
                return slice_
            return stablehlo.ReshapeOp(type_, slice_).result

    def _forward_counter(self, before: ir.Operation) -> ir.Value:
        """The counter of the forward iteration that the backward body is at."""
        pair = self.plan.pair
        if (pair.slope, pair.offset) == (1, 0):
            return pair.index
        with ir.InsertionPoint(before), rematerialized(before.location):
            last = integer_like(pair.index, pair.offset)
            return stablehlo.SubtractOp(last, pair.index).result

    def _argument(self, outer: ir.Value) -> ir.Value:
        """The body's argument for a value outside the loop, as an invariant carry."""
        if outer not in self.invariant:
            self.invariant[outer] = self.edit.add(outer)
        return self.edit.body.arguments[self.invariant[outer]]

    @functools.cached_property
    def invariant(self) -> dict[ir.Value, int]:
        """By what the loop is given for them, its invariant carries, those added included.

        To be asked for once no operand is exchanged any more.
        """
        found: dict[ir.Value, int] = {}
        for number in sorted(self.plan.pair.backward.invariant):
            found.setdefault(self.edit.operands[number], number)
        return found
