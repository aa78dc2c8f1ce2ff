"""Writes the ticks of one device, which every device runs alike::

    while t < ticks:
      u = t - place;  repeat, m = divmod(clamp(u), microbatches)
      carry = place == 0 ? buffer[m] : what arrived
      while i < layers of a segment:            the body, with slices of the device's own stacks
        ...
      buffer[m] = carry, on the last device
      arrived = carry of the device before      collective_permute

The buffer begins as the loop's initial value, so that the first device takes microbatches from it.
In further repeats values that arrive there from the last device are written into it.

Idle ticks compute, too, on existing microbatches: every device runs the same operations in the same
order, whatever collectives XLA's partitioner inserts, and every trip count is constant. Before its
first microbatch a device writes results that it overwrites with that one's; after its last one it
repeats that one. Terms of sums are zero in idle ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.signatures.signature import AxisLayout, Combine
from ..ir.build import (
    Box,
    broadcast,
    compare,
    converted,
    counted_while,
    counter,
    reduce,
    reshaped,
    typed,
    zeros,
)
from ..ir.build_collectives import across, sent
from ..ir.values import element_of, shape_of
from ..phase_loops.devices import DeviceShare
from ..phase_loops.exits import COMBINES, identity
from ..phase_loops.slices import ChunkStart, chunk_box, resized, stack_type, write_chunk
from .loop import Moves, PipelineCarry, WrittenStack
from .places import Places
from .segment_writer import SegmentWriter, grouped


class DeviceWriter:
    """Writes the computation of one device.

    Args:
      places: the shardings of the pipeline's values.
      returned: the carries that are read after the loop, by number.
      channels: numbers of collectives, one after the other.
      stage: the device's number along the axis.
      share: its share of the batch.
      outside: its values from outside, by number.
    """

    def __init__(
        self,
        places: Places,
        returned: Collection[int],
        channels: Iterator[int],
        stage: ir.Value,
        share: DeviceShare,
        outside: Mapping[int, ir.Value],
    ) -> None:
        self.places = places
        self.pipeline = places.pipeline
        self.schedule = self.pipeline.schedule
        self.share = share
        self.outside = outside
        self._returned = returned
        self._channels = channels
        self.zero = counter(0)
        last = counter(self.schedule.stages - 1)
        forward = self.pipeline.found.slope == 1
        self.place = stage if forward else stablehlo.subtract(last, stage)
        self.is_first = compare(self.place, self.zero, "EQ")
        self.is_last = compare(self.place, last, "EQ")

    def run(self, read: Sequence[ir.Value], starts: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes all ticks; returns the device's parts of the results."""
        pipeline = self.pipeline
        stacks = [
            self._stacked(value, layout) for value, layout in zip(read, pipeline.read, strict=True)
        ]
        buffers = [
            self._buffer(carry, start)
            for carry, start in zip(pipeline.travelling, starts, strict=True)
        ]
        first = [self._taken(carry, buffer, self.zero) for carry, buffer in self._each(buffers)]
        written = [self._empty_stack(stack) for stack in pipeline.written]
        added = [zeros(typed(carry.type, element=carry.element)) for carry in pipeline.added]
        sizes = [len(first), len(first), len(buffers), len(written), len(added)]

        def tick(count: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
            arrived, held, buffers, written, added = grouped(carried, sizes)
            return self._tick(count, arrived, held, buffers, stacks, written, added)

        starting = [counter(0), *first, *first, *buffers, *written, *added]
        made = counted_while(self.schedule.ticks, starting, tick)
        _, _, buffers, written, added = grouped(made, sizes)
        left = {carry.number: value for carry, value in self._each(buffers)}
        left |= {carry.number: value for carry, value in zip(pipeline.added, added, strict=True)}
        results = [
            self._left(carry, left[carry.number])
            for carry in pipeline.carries
            if carry.number in self._returned
        ]
        stacks_left = zip(pipeline.written, written, strict=True)
        return [*results, *(self._stack_left(stack, value) for stack, value in stacks_left)]

    def _each(self, values: Sequence[ir.Value]) -> list[tuple[PipelineCarry, ir.Value]]:
        """Returns the travelling carries, each with a value of its own."""
        return list(zip(self.pipeline.travelling, values, strict=True))

    def _tick(
        self,
        count: ir.Value,
        arrived: Sequence[ir.Value],
        held: Sequence[ir.Value],
        buffers: Sequence[ir.Value],
        stacks: Sequence[ir.Value],
        written: Sequence[ir.Value],
        added: Sequence[ir.Value],
    ) -> Sequence[ir.Value]:
        schedule = self.schedule
        end = counter(schedule.items)
        item = stablehlo.subtract(count, self.place)
        has_begun = compare(item, self.zero, "GE")
        is_late = compare(item, end, "GE")
        is_valid = stablehlo.and_(has_begun, stablehlo.not_(is_late))
        item = stablehlo.clamp(self.zero, item, counter(schedule.items - 1))
        turn, microbatch = self._turn(item)
        if schedule.repeats > 1:
            buffers = self._with_returned(count, arrived, buffers)
        starts = [
            stablehlo.select(
                is_late,
                before,
                stablehlo.select(self.is_first, self._taken(carry, buffer, microbatch), came),
            )
            for (carry, buffer), came, before in zip(
                self._each(buffers), arrived, held, strict=True
            )
        ]
        segment = SegmentWriter(
            self.places, self.outside, self.place, self._chunk(microbatch), turn, is_valid, stacks
        )
        done, written, added = segment.run(starts, written, added)
        buffers = [
            self._put(carry, buffer, microbatch, value, self.is_last)
            for (carry, buffer), value in zip(self._each(buffers), done, strict=True)
        ]
        moved = [self._sent(value) for value in done]
        return [*moved, *starts, *buffers, *written, *added]

    def _turn(self, item: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Returns the repeat and the microbatch of an item."""
        if self.schedule.repeats == 1:
            return self.zero, item
        count = counter(self.schedule.microbatches)
        return stablehlo.divide(item, count), stablehlo.remainder(item, count)

    def _with_returned(
        self, count: ir.Value, arrived: Sequence[ir.Value], buffers: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Returns the buffers with the values that arrived at the first device from the last one,
        for another turn."""
        schedule = self.schedule
        item = stablehlo.subtract(count, counter(schedule.stages))
        again = counter((schedule.repeats - 1) * schedule.microbatches)
        came = stablehlo.and_(compare(item, self.zero, "GE"), compare(item, again, "LT"))
        _, microbatch = self._turn(stablehlo.maximum(item, self.zero))
        is_put = stablehlo.and_(came, self.is_first)
        return [
            self._put(carry, buffer, microbatch, value, is_put)
            for (carry, buffer), value in zip(self._each(buffers), arrived, strict=True)
        ]

    def _sent(self, value: ir.Value) -> ir.Value:
        """Returns the value of the device before this one."""
        as_ring = self.schedule.repeats > 1
        hops = self.places.axis.hops(self.pipeline.found.slope, as_ring=as_ring)
        wide = converted(value, _sendable(element_of(value)))
        return converted(sent(wide, hops, next(self._channels)), element_of(value))

    # Buffers of travelling values: chunks of the batch, or one value for each microbatch.

    def _chunk(self, microbatch: ir.Value) -> ChunkStart:
        length = self.pipeline.plan.schedule.length
        start = microbatch if length == 1 else stablehlo.multiply(microbatch, counter(length))
        return ChunkStart(start, self.zero, length, self.share)

    def _buffer(self, carry: PipelineCarry, start: ir.Value) -> ir.Value:
        if carry.layout is not None:
            return self._stacked(start, carry.layout)
        shape = shape_of(start)
        count = self.schedule.microbatches
        return broadcast(start, [count, *shape], range(1, 1 + len(shape)))

    def _stacked(self, value: ir.Value, layout: AxisLayout | None) -> ir.Value:
        """Returns a device's part of a value in the form that chunks are written into."""
        if layout is None:
            return value
        return reshaped(value, shape_of(stack_type(value.type, self.places.own(layout))))

    def _taken(self, carry: PipelineCarry, buffer: ir.Value, microbatch: ir.Value) -> ir.Value:
        if carry.layout is None:
            made = Box({0: (microbatch, 1)}, self.zero).slice(buffer)
            return reshaped(made, shape_of(buffer)[1:])
        layout, chunk = self.places.own(carry.layout), self._chunk(microbatch)
        made = chunk_box(layout, chunk).slice(buffer)
        return reshaped(made, shape_of(resized(carry.type, layout, chunk.length)))

    def _put(
        self,
        carry: PipelineCarry,
        buffer: ir.Value,
        microbatch: ir.Value,
        value: ir.Value,
        where: ir.Value,
    ) -> ir.Value:
        """Returns the buffer with a microbatch's value, where a condition holds."""
        value = stablehlo.select(where, value, self._taken(carry, buffer, microbatch))
        if carry.layout is None:
            part = reshaped(value, [1, *shape_of(value)])
            return Box({0: (microbatch, 1)}, self.zero).update(buffer, part)
        return write_chunk(buffer, value, self.places.own(carry.layout), self._chunk(microbatch))

    # The values that leave the loop.

    def _left(self, carry: PipelineCarry, value: ir.Value) -> ir.Value:
        """Returns a carry after the loop, on all devices or in parts of the batch."""
        axis, axes = self.places.axis, self.pipeline.axes
        if carry.moves is Moves.ADDED:
            value = converted(value, element_of(carry.type))
            return self._across((axis.name, *axes), value, Combine.SUM)
        value = self._in_one(carry, value)
        own = element_of(value)
        value = converted(value, _summable(own))
        # The others have zeros to add.
        value = stablehlo.select(self.is_last, value, zeros(ir.RankedTensorType(value.type)))
        is_scattered = self.places.by_part(carry.type, carry.layout) is not None
        scattered = carry.layout.axis if carry.layout and is_scattered else None
        value = converted(self._across((axis.name,), value, Combine.SUM, scattered), own)
        return self._across(axes, value, carry.combine) if carry.combine and axes else value

    def _in_one(self, carry: PipelineCarry, buffer: ir.Value) -> ir.Value:
        """Returns a carry after the loop, as the last device has it, from its buffer."""
        if carry.layout is not None:
            layout = self.places.own(carry.layout)
            return reshaped(buffer, shape_of(resized(carry.type, layout, layout.size)))
        if carry.combine is not None:
            start = identity(typed(carry.type, []), carry.combine)
            return reduce(buffer, [0], start, COMBINES[carry.combine])
        return self._taken(carry, buffer, counter(self.schedule.microbatches - 1))

    def _across(
        self, names: Sequence[str], value: ir.Value, combine: Combine, scattered: int | None = None
    ) -> ir.Value:
        groups = self.places.axis.groups(names)
        channel = next(self._channels)
        return across(value, groups, channel, COMBINES[combine], scattered=scattered)

    def _empty_stack(self, stack: WrittenStack) -> ir.Value:
        type_ = self.places.part(stack.type, self.places.of_stack(stack.layout))
        if stack.layout is not None:
            type_ = stack_type(type_, self.places.own(stack.layout))
        return identity(typed(type_, element=stack.element), stack.combine or Combine.SUM)

    def _stack_left(self, stack: WrittenStack, value: ir.Value) -> ir.Value:
        value = converted(value, element_of(stack.type))
        if stack.combine is not None and self.pipeline.axes:
            axis, names = self.places.scattered(stack) or (None, ())
            if axis is not None:
                value = self._across(names, value, stack.combine, axis)
            others = [name for name in self.pipeline.axes if name not in names]
            value = self._across(others, value, stack.combine) if others else value
        return reshaped(
            value, shape_of(self.places.part(stack.type, self.places.of_written(stack)))
        )


def _sendable(element: ir.Type) -> ir.Type:
    """Returns a type that holds every number of an element type, and that collectives take."""
    if isinstance(element, ir.IntegerType) and element.width < 8:
        return ir.IntegerType.get_signless(8) if element.width > 1 else element
    return element


def _summable(element: ir.Type) -> ir.Type:
    """Returns a type that holds every number of an element type, and that collectives add in."""
    if isinstance(element, ir.IntegerType) and element.width < 32:
        return ir.IntegerType.get_signless(32)
    if isinstance(element, ir.FloatType) and element.width < 16:
        return ir.F32Type.get()
    return element
