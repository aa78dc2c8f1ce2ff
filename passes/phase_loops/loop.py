"""Writes one loop: what it carries, its body, and a last shorter chunk after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..accumulate_in_place.terms import product_terms
from ..analysis.signatures.signature import Combine
from ..ir.values import defining_op
from .accumulators import COMBINES, identity
from .body import ChunkWriter
from .leaving import Leaves, LoopExit
from .plan import LoopsPlan, PhaseLoop
from .slices import (
    ChunkStart,
    own_layout,
    resized,
    scalar,
    stack_type,
    write_chunk,
)


@dataclass
class LoopWriter:
    """Writes a loop at the current insertion point.

    Attributes:
      plan: the plan that it is one of.
      loop: what it holds.
      outside: the values that are known outside, by number.
      parts: the same of those that a device has a part of, with the axis that is divided.
      devices: how many devices run a loop of their own each.
      device: the number of the device; None where one loop is for all.
    """

    plan: LoopsPlan
    loop: PhaseLoop
    outside: Callable[[int], ir.Value]
    parts: Mapping[tuple[int, int], ir.Value] = field(default_factory=dict)
    devices: int = 1
    device: ir.Value | None = None

    def write(self) -> list[ir.Value]:
        """The values that leave the loop, those that are accumulated in the accumulators' types."""
        carried = self._while()
        if self.plan.rest:
            start = scalar(_index(), self.plan.trips * self.plan.length)
            carried = self._chunk(start, self.plan.rest, carried)
            self._add_in_place(carried)
        return [
            stablehlo.reshape(self._whole_type(found), value)
            if found.leaves is Leaves.STACKED and value.type != self._whole_type(found)
            else value
            for found, value in zip(self.loop.exits, carried, strict=True)
        ]

    def _while(self) -> Sequence[ir.Value]:
        index = _index()
        starts = [scalar(index, 0), *map(self._start, self.loop.exits)]
        types = [start.type for start in starts]
        made = stablehlo.WhileOp(types, starts).operation
        locations = [made.location] * len(types)
        condition = made.regions[0].blocks.append(*types, arg_locs=locations)
        with ir.InsertionPoint(condition):
            less = stablehlo.ComparisonDirectionAttr.get("LT")
            trips = scalar(index, self.plan.trips)
            stablehlo.ReturnOp([stablehlo.compare(condition.arguments[0], trips, less)])
        body = made.regions[1].blocks.append(*types, arg_locs=locations)
        with ir.InsertionPoint(body):
            count, *carried = body.arguments
            length = self.plan.length
            start = count if length == 1 else stablehlo.multiply(count, scalar(index, length))
            returned = self._chunk(start, length, carried)
            stablehlo.ReturnOp([stablehlo.add(count, scalar(index, 1)), *returned])
        self._add_in_place(returned)
        return [*made.results][1:]

    def _start(self, found: LoopExit) -> ir.Value:
        type_ = self._whole_type(found)
        if found.leaves is Leaves.STACKED and found.flow.layout is not None:
            type_ = stack_type(type_, own_layout(found.flow.layout, self.devices))
        shape = ir.RankedTensorType(type_).shape
        carried = ir.RankedTensorType.get(shape, found.element)
        return identity(carried, found.flow.combine or Combine.SUM)

    def _whole_type(self, found: LoopExit) -> ir.Type:
        """The type of all chunks of a value together."""
        if found.leaves is not Leaves.STACKED or found.flow.layout is None:
            return found.type
        layout = own_layout(found.flow.layout, self.devices)
        return resized(found.type, layout, layout.size)

    def _chunk(
        self, start: ir.Value, length: int, carried: Sequence[ir.Value]
    ) -> Sequence[ir.Value]:
        """Writes a chunk; returns what is carried after it."""
        zero = scalar(_index(), 0)
        chunk = ChunkStart(start, zero, length, self.devices, self.device)
        writer = ChunkWriter(self.plan.program, self.loop.copies, chunk, self.outside, self.parts)
        writer.write()
        return [
            _carry(found, writer.value(found.number), before, chunk)
            for found, before in zip(self.loop.exits, carried, strict=True)
        ]

    def _add_in_place(self, carried: Sequence[ir.Value]) -> None:
        """Makes the terms that are products in the types of their sums, once all is written.

        A product is its own sum, unrounded, and no term is in memory: XLA adds it to the
        accumulator inside of the product.
        """
        for found, total in zip(self.loop.exits, carried, strict=True):
            op = defining_op(total)
            if op is None or found.flow.combine is not Combine.SUM or found.rounds:
                continue
            for term in product_terms(op, moved=self.plan.widens_moved):
                term.widen()


def _carry(found: LoopExit, made: ir.Value, before: ir.Value, chunk: ChunkStart) -> ir.Value:
    if found.leaves is Leaves.SAME:
        return made
    if found.flow.layout is not None:
        return write_chunk(before, made, chunk.own(found.flow.layout), chunk)
    assert found.flow.combine is not None
    term = made if made.type == before.type else stablehlo.convert(before.type, made)
    return COMBINES[found.flow.combine](before, term)


def _index() -> ir.Type:
    return ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
