"""Rebuilds a pair of loops as planned: the editing half of ``scan``."""

from __future__ import annotations

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.analysis.loops import defining_op
from hloom.passes.analysis.names import rematerialized
from hloom.passes.loop_edit import LoopEdit, Replaced, integer_like
from hloom.passes.remat.rewrite import clone_before, erase_dead, replace_operands
from hloom.passes.remat.scan import BodySite, ScanPlan


def apply_scan(plan: ScanPlan, replaced: Replaced) -> None:
    """Rebuilds both loops and notes the new ones and their results in ``replaced``.

    The old loops are left empty and unused; they are the caller's to erase.
    """
    forward = LoopEdit(plan.pair.forward.op)
    arguments: list[ir.Value] = list(plan.pair.forward.body.arguments)
    trips, index = plan.pair.forward.trips, plan.pair.links[0].stack.update.operands[2]
    numbers = {
        value: forward.add_stack(value, trips, index) if stack is None else stack.number
        for value, stack in plan.stored
    }
    for link in plan.dropped:
        forward.drop_stack(link.stack.number, link.stack.update)
    new_forward = forward.apply(replaced)
    stacks = {
        value: new_forward.results[forward.position(number)] for value, number in numbers.items()
    }

    backward = LoopEdit(plan.pair.backward.op)
    body = _BackwardBody(plan, backward, stacks, arguments, replaced)
    for site in plan.sites:
        body.write(site)
    erase_dead(plan.pair.backward.body)
    for link in plan.dropped:
        for number in link.operands:
            backward.drop(number)
    new_backward = backward.apply(replaced)
    erase_dead(new_forward.regions[1].blocks[0])
    # The next run is to leave both bodies alone, even one in which nothing was put.
    for loop in (new_forward, new_backward):
        loop.location = rematerialized(loop.location)


class _BackwardBody:
    """Writes slices and clones into the backward body."""

    def __init__(
        self,
        plan: ScanPlan,
        edit: LoopEdit,
        stacks: dict[ir.Value, ir.Value],
        arguments: list[ir.Value],
        replaced: Replaced,
    ) -> None:
        """``arguments`` are those of the forward body as planned, before it was rebuilt."""
        self.plan, self.edit, self.stacks, self.replaced = plan, edit, stacks, replaced
        outer = plan.pair.forward.op.operands
        self.outer = dict(zip(arguments, outer, strict=True))
        self.counter = arguments[plan.pair.forward.counter]
        self.known: dict[ir.Value, ir.Value] = {}
        gone = {link.stack.number for link in plan.dropped}
        self.reads = {
            link.stored: link.reads for link in plan.pair.links if link.stack.number not in gone
        }

    def write(self, site: BodySite) -> None:
        """Puts what the site needs before it and lets it read that."""
        inside = {result for op in site.cloned for result in op.results}
        for op in site.cloned:
            for operand in op.operands:
                if operand not in inside:
                    self._provide(operand, site.op)
        self.known |= clone_before(site.op, site.cloned, self.known)
        for _, value in site.reads:
            self._provide(value, site.op)
        replace_operands(site.op, {read: self.known[value] for read, value in site.reads})

    def _provide(self, value: ir.Value, before: ir.Operation) -> None:
        """Makes a forward value known in the backward body, from its stack or from outside."""
        if value in self.known:
            return
        if value in self.stacks:
            self.known[value] = self._read(value, before) or self._slice(value, before)
        elif value == self.counter:
            self.known[value] = self._forward_counter(before)
        elif value in self.outer:
            self.known[value] = self._argument(self.outer[value])
        else:
            self.known[value] = self.replaced.value(value)

    def _read(self, value: ir.Value, before: ir.Operation) -> ir.Value | None:
        """The slice that the body has of the value already, where it stands early enough."""
        for read in self.reads.get(value, ()):
            op = defining_op(read)
            if op is not None and op.is_before_in_block(before):
                return read
        return None

    def _slice(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        type_ = ir.RankedTensorType(value.type)
        stack = self.stacks[value]
        sizes = [1, *ir.RankedTensorType(stack.type).shape[1:]]
        with ir.InsertionPoint(before), rematerialized(value.location):
            zero = integer_like(self.plan.pair.index, 0)
            starts = [self.plan.pair.index, *[zero] * (len(sizes) - 1)]
            slice_ = stablehlo.DynamicSliceOp(self._argument(stack), starts, sizes).result
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
        number = next(
            (n for n, v in enumerate(self.edit.operands) if v == outer and self._is_invariant(n)),
            None,
        )
        if number is None:
            number = self.edit.add(outer)
        return self.edit.body.arguments[number]

    def _is_invariant(self, number: int) -> bool:
        loop = self.plan.pair.backward
        added = number >= len(loop.op.operands)
        return added or (number in loop.invariant and number not in self.edit.dropped)
