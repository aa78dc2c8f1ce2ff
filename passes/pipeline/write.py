"""Writes a loop over layers as a pipeline, in its place.

One manual computation over the pipeline's axis, in which every device runs the same ticks::

    while t < ticks:
      u = t - place;  repeat, m = divmod(clamp(u), microbatches)
      carry = place == 0 ? buffer[m] : what arrived
      while i < layers of a segment:            the body, with slices of the device's own stacks
        ...
      buffer[m] = carry, on the last device
      arrived = carry of the device before      collective_permute

The buffer begins as what the loop begins with, so that the first device takes microbatches from it.
In further repeats what arrives there from the last device is put into it.

Idle ticks compute, too, on microbatches that are there: every device runs the same operations in the
same order, whatever XLA's partitioner makes of them, and every trip count is constant. Before its
first microbatch a device writes what it writes again with that one; behind its last one it repeats
that. Of sums the terms of idle ticks are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from ..analysis.purity import erase_dead, erase_unread
from ..analysis.signatures.signature import AxisLayout, Combine
from ..ir import walk
from ..ir.build import (
    Box,
    broadcast,
    compare,
    converted,
    counted_while,
    counter,
    iota,
    reduce,
    reshaped,
    typed,
    zeros,
)
from ..ir.build_collectives import across, sent
from ..ir.erase import erase
from ..ir.locations import scoped
from ..ir.shardings import CONSTRAINT
from ..ir.values import defining_op, element_of, is_read, shape_of
from ..phase_loops.contents import Form, OperationCopy, Read
from ..phase_loops.devices import Share
from ..phase_loops.exits import COMBINES, identity
from ..phase_loops.slices import ChunkStart, chunk_box, read_chunk, resized, stack_type, write_chunk
from ..phase_loops.write import ChunkWriter
from .circular import Dealing
from .loop import PipelineCarry, PipelinedLoop, WrittenStack
from .mesh_axis import AxesByDimension, StageAxis

SCOPE = "hloom.pipeline"
"""Name-stack component of the operations that are added."""

Channels = Iterator[int]


class PipelineWriter:
    """Writes the pipelines of a module, the first one first.

    Args:
      axis: that they are along.
      channels: numbers of collectives, one after the other.
    """

    def __init__(self, axis: StageAxis, channels: Channels) -> None:
        self._axis = axis
        self._channels = channels
        self._replaced: dict[ir.Value, ir.Value] = {}
        self._dealing = Dealing(axis.count)

    def write(self, pipeline: PipelinedLoop) -> None:
        """Writes one, and erases its loop."""
        loop = pipeline.found.loop
        with ir.InsertionPoint(loop.op), scoped(loop.op.location, SCOPE):
            made = _LoopWriter(
                pipeline, self._axis, self._channels, self._dealing, self._now
            ).write()
            for number, value in made.items():
                result = loop.op.results[number]
                self._replaced[result] = value
                result.replace_all_uses_with(value)
        made_of = [op for value in loop.op.operands if (op := defining_op(value)) is not None]
        erase(loop.op)
        erase_unread(made_of)

    def _now(self, value: ir.Value) -> ir.Value:
        """What stands for a planned value now."""
        return self._replaced.get(value, value)


@dataclass(frozen=True)
class _Operand:
    """What the manual computation reads: a value, and how the devices have parts of it."""

    value: ir.Value
    split: AxesByDimension


class _LoopWriter:
    def __init__(
        self,
        pipeline: PipelinedLoop,
        axis: StageAxis,
        channels: Channels,
        dealing: Dealing,
        now: Callable[[ir.Value], ir.Value],
    ) -> None:
        self.pipeline = pipeline
        self.axis = axis
        self.channels = channels
        self._dealing = dealing
        self._now = now
        self._loop = pipeline.found.loop
        self.manual = (axis.name, *pipeline.axes)
        self._read_results = {
            number for number, result in enumerate(self._loop.op.results) if is_read(result)
        }

    def write(self) -> dict[int, ir.Value]:
        """By number the values that stand for the loop's results."""
        pipeline, loop = self.pipeline, self._loop
        operands = self._operands()
        results = [
            *(
                (carry, *self._result_of_carry(carry))
                for carry in pipeline.carries
                if self.is_returned(carry)
            ),
            *((stack, *self._result_of_stack(stack)) for stack in pipeline.written),
        ]
        made = sdy.ManualComputationOp(
            [type_ for _, type_, _ in results],
            [each.value for each in operands],
            self._shardings([(each.value.type, each.split) for each in operands]),
            self._shardings([(type_, split) for _, type_, split in results]),
            sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in self.manual]),
        )
        types = [self.axis.part(each.value.type, each.split) for each in operands]
        location = made.operation.location
        block = made.operation.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
        with ir.InsertionPoint(block):
            sdy.ReturnOp(self._device(list(block.arguments)))
        for inner in reversed(list(walk.code_blocks(made.operation))):
            erase_dead(inner)
        found = {number: self._now(loop.op.operands[number]) for number in loop.invariant}
        if loop.counter in self._read_results:
            kind = ir.RankedTensorType(loop.op.results[loop.counter].type)
            count = ir.IntegerAttr.get(kind.element_type, loop.trip_count)
            found[loop.counter] = stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, count))
        for (each, _, _), value in zip(results, made.operation.results, strict=True):
            if isinstance(each, WrittenStack):
                value = self._dealing.in_order(value, pipeline.schedule.repeats)
            found[each.number] = value
        return {number: value for number, value in found.items() if number in self._read_results}

    def is_returned(self, carry: PipelineCarry) -> bool:
        return carry.number in self._read_results

    def _shardings(
        self, values: Sequence[tuple[ir.Type, AxesByDimension]]
    ) -> sdy.TensorShardingPerValueAttr:
        return sdy.TensorShardingPerValueAttr.get(
            [self.axis.sharding(type_, split, self.manual) for type_, split in values]
        )

    # How values lie on the devices.

    def _along_batch(self, layout: AxisLayout | None) -> dict[int, Sequence[str]]:
        axes = self.pipeline.axes
        return {layout.axis: axes} if layout is not None and axes else {}

    def stack_split(self, layout: AxisLayout | None) -> AxesByDimension:
        return {0: (self.axis.name,), **self._along_batch(layout)}

    def _result_of_carry(self, carry: PipelineCarry) -> tuple[ir.Type, AxesByDimension]:
        split = self._along_batch(carry.layout)
        if self.is_scattered(carry) and carry.layout is not None:
            split[carry.layout.axis] = (*self.pipeline.axes, self.axis.name)
        return carry.type, split

    def is_scattered(self, carry: PipelineCarry) -> bool:
        """Whether each device of the axis gets its part of the batch, for what is behind the loop.

        That is how embedding, head and loss are divided over these devices.
        """
        layout = carry.layout
        if layout is None or self.own(layout).outer != 1:
            return False
        return shape_of(carry.type)[layout.axis] % (self.axis.count * self.pipeline.parts) == 0

    def _result_of_stack(self, stack: WrittenStack) -> tuple[ir.Type, AxesByDimension]:
        return stack.type, self.stack_split(stack.layout)

    def own(self, layout: AxisLayout) -> AxisLayout:
        """A layout in the part of a value that a device has."""
        return replace(layout, outer=layout.outer // self.pipeline.parts)

    def _operands(self) -> list[_Operand]:
        pipeline, axis = self.pipeline, self.axis
        values = pipeline.plan.program.program.values
        repeats = pipeline.schedule.repeats
        found = [_Operand(iota([axis.count], 0), {0: (axis.name,)})]
        if pipeline.axes:
            found.append(_Operand(iota([pipeline.parts], 0), {0: pipeline.axes}))
        for each, layout in zip(pipeline.found.read, pipeline.read, strict=True):
            stack = self._dealing.dealt(self._now(each.value), repeats)
            found.append(_Operand(stack, self.stack_split(layout)))
        for carry in pipeline.travelling:
            start = self._now(self._loop.op.operands[carry.number])
            found.append(_Operand(start, self._along_batch(carry.layout)))
        for number, form in pipeline.cut:
            assert isinstance(form, AxisLayout)
            found.append(_Operand(self._now(values[number]), self._along_batch(form)))
        found += [_Operand(self._now(values[number]), {}) for number in pipeline.whole]
        return found

    def _device(self, arguments: list[ir.Value]) -> list[ir.Value]:
        """The computation of one device; what it returns."""
        pipeline = self.pipeline
        taken = iter(arguments)
        stage = reshaped(next(taken), [])
        part = reshaped(next(taken), []) if pipeline.axes else None
        read = [next(taken) for _ in pipeline.found.read]
        starts = [next(taken) for _ in pipeline.travelling]
        cut = {read: next(taken) for read in pipeline.cut}
        whole = {number: next(taken) for number in pipeline.whole}
        share = Share(
            pipeline.parts,
            {
                (value, form.axis): made
                for (value, form), made in cut.items()
                if isinstance(form, AxisLayout)
            },
            part,
        )
        outside = {**{value: made for (value, _), made in cut.items()}, **whole}
        device = _Device(self, stage, share, outside)
        return device.run(read, starts)


class _Device:
    """Writes the computation of one device.

    Args:
      loop: what it is of.
      stage: the device's number along the axis.
      share: what it has of the batch.
      outside: its values from outside, by number.
    """

    def __init__(
        self,
        loop: _LoopWriter,
        stage: ir.Value,
        share: Share,
        outside: Mapping[int, ir.Value],
    ) -> None:
        self.loop = loop
        self.pipeline = loop.pipeline
        self.schedule = self.pipeline.schedule
        self.share = share
        self.outside = outside
        self.zero = counter(0)
        last = counter(self.schedule.stages - 1)
        forward = self.pipeline.found.slope == 1
        self.place = stage if forward else stablehlo.subtract(last, stage)
        self.is_first = compare(self.place, self.zero, "EQ")
        self.is_last = compare(self.place, last, "EQ")

    def run(self, read: Sequence[ir.Value], starts: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes all of it; gives the device's parts of the results."""
        pipeline, loop = self.pipeline, self.loop
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
            arrived, held, buffers, written, added = _grouped(carried, sizes)
            return self._tick(count, arrived, held, buffers, stacks, written, added)

        starting = [counter(0), *first, *first, *buffers, *written, *added]
        made = counted_while(self.schedule.ticks, starting, tick)
        _, _, buffers, written, added = _grouped(made, sizes)
        by_number = {
            **{
                carry.number: self._left(carry, buffer)
                for carry, buffer in self._each(buffers)
                if loop.is_returned(carry)
            },
            **{
                carry.number: self._summed(carry, value)
                for carry, value in zip(pipeline.added, added, strict=True)
                if loop.is_returned(carry)
            },
        }
        left = [by_number[carry.number] for carry in pipeline.carries if loop.is_returned(carry)]
        return left + [
            self._stack_left(stack, value)
            for stack, value in zip(pipeline.written, written, strict=True)
        ]

    def _each(self, values: Sequence[ir.Value]) -> list[tuple[PipelineCarry, ir.Value]]:
        """What travels, each with a value of its own."""
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
        segment = SegmentWriter(self, self._chunk(microbatch), turn, is_valid, stacks)
        done, written, added = segment.run(starts, written, added)
        buffers = [
            self._put(carry, buffer, microbatch, value, self.is_last)
            for (carry, buffer), value in zip(self._each(buffers), done, strict=True)
        ]
        moved = [self._sent(value) for value in done]
        return [*moved, *starts, *buffers, *written, *added]

    def _turn(self, item: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The repeat and the microbatch of an item."""
        if self.schedule.repeats == 1:
            return self.zero, item
        count = counter(self.schedule.microbatches)
        return stablehlo.divide(item, count), stablehlo.remainder(item, count)

    def _with_returned(
        self, count: ir.Value, arrived: Sequence[ir.Value], buffers: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """The buffers with what came to the first device from the last one, for another turn."""
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
        """What the device before this one made."""
        as_ring = self.schedule.repeats > 1
        hops = self.loop.axis.hops(self.pipeline.found.slope, as_ring=as_ring)
        wide = converted(value, _sendable(element_of(value)))
        return converted(sent(wide, hops, next(self.loop.channels)), element_of(value))

    # Buffers of what travels: chunks of the batch, or one value for each microbatch.

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
        """A device's part of a value in the form that chunks are written into."""
        if layout is None:
            return value
        return reshaped(value, shape_of(stack_type(value.type, self.loop.own(layout))))

    def _taken(self, carry: PipelineCarry, buffer: ir.Value, microbatch: ir.Value) -> ir.Value:
        if carry.layout is None:
            made = Box({0: (microbatch, 1)}, self.zero).slice(buffer)
            return reshaped(made, shape_of(buffer)[1:])
        layout, chunk = self.loop.own(carry.layout), self._chunk(microbatch)
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
        """The buffer with a microbatch's value, where a condition holds."""
        value = stablehlo.select(where, value, self._taken(carry, buffer, microbatch))
        if carry.layout is None:
            part = reshaped(value, [1, *shape_of(value)])
            return Box({0: (microbatch, 1)}, self.zero).update(buffer, part)
        return write_chunk(buffer, value, self.loop.own(carry.layout), self._chunk(microbatch))

    # What leaves the loop.

    def _left(self, carry: PipelineCarry, buffer: ir.Value) -> ir.Value:
        """What travelled, from the last device's buffer."""
        pipeline, loop = self.pipeline, self.loop
        if carry.layout is not None:
            layout = loop.own(carry.layout)
            value = reshaped(buffer, shape_of(resized(carry.type, layout, layout.size)))
            scattered = carry.layout.axis if loop.is_scattered(carry) else None
        elif carry.combine is not None:
            scattered = None
            element = typed(carry.type, [])
            value = reduce(buffer, [0], identity(element, carry.combine), COMBINES[carry.combine])
        else:
            scattered = None
            last = counter(self.schedule.microbatches - 1)
            value = self._taken(carry, buffer, last)
        own = element_of(value)
        value = converted(value, _summable(own))
        value = stablehlo.select(self.is_last, value, zeros(ir.RankedTensorType(value.type)))
        groups = loop.axis.groups([loop.axis.name])
        value = across(value, groups, next(loop.channels), stablehlo.add, scattered=scattered)
        value = converted(value, own)
        if carry.combine is not None and pipeline.axes:
            groups = loop.axis.groups(pipeline.axes)
            value = across(value, groups, next(loop.channels), COMBINES[carry.combine])
        return value

    def _summed(self, carry: PipelineCarry, value: ir.Value) -> ir.Value:
        """What was added up on each device, over all of them."""
        groups = self.loop.axis.groups(self.loop.manual)
        value = converted(value, element_of(carry.type))
        return across(value, groups, next(self.loop.channels), stablehlo.add)

    def _empty_stack(self, stack: WrittenStack) -> ir.Value:
        loop = self.loop
        type_ = loop.axis.part(stack.type, loop.stack_split(stack.layout))
        if stack.layout is not None:
            type_ = stack_type(type_, loop.own(stack.layout))
        return identity(typed(type_, element=stack.element), stack.combine or Combine.SUM)

    def _stack_left(self, stack: WrittenStack, value: ir.Value) -> ir.Value:
        loop = self.loop
        value = converted(value, element_of(stack.type))
        if stack.combine is not None and self.pipeline.axes:
            groups = loop.axis.groups(self.pipeline.axes)
            value = across(value, groups, next(loop.channels), COMBINES[stack.combine])
        split = loop.stack_split(stack.layout)
        return reshaped(value, shape_of(loop.axis.part(stack.type, split)))


class SegmentWriter(ChunkWriter):
    """Writes a segment on a microbatch: some iterations of the loop over layers, on one device.

    Args:
      device: what it is on.
      chunk: the microbatch.
      turn: the repeat.
      is_valid: whether the device is not idle.
      stacks: the device's part of the stacks that the loop reads.
    """

    def __init__(
        self,
        device: _Device,
        chunk: ChunkStart,
        turn: ir.Value,
        is_valid: ir.Value,
        stacks: Sequence[ir.Value],
    ) -> None:
        pipeline = device.pipeline
        copies = pipeline.plan.loops[0].copies
        super().__init__(pipeline.plan.program, copies, chunk, device.outside.__getitem__)
        self._device = device
        self._pipeline = pipeline
        self._turn = turn
        self._is_valid = is_valid
        self._slices = {
            walk.key(op): (stack, layout)
            for found, layout, stack in zip(pipeline.found.read, pipeline.read, stacks, strict=True)
            for op in found.slices
        }
        self._updates = {walk.key(each.update): each for each in pipeline.written}
        self._additions = {
            walk.key(ir.OpResult(value).owner.operation): (carry, so_far)
            for carry in pipeline.added
            for value, so_far in carry.additions.items()
        }
        self._written: dict[int, ir.Value] = {}
        self._starts: Sequence[ir.Value] = ()
        self._stacks: Sequence[ir.Value] = ()
        self._sums: Sequence[ir.Value] = ()
        self._done: list[list[ir.Value]] = []

    def run(
        self, starts: Sequence[ir.Value], stacks: Sequence[ir.Value], sums: Sequence[ir.Value]
    ) -> list[list[ir.Value]]:
        """Writes it; gives what travels, the stacks, and what is added up."""
        self._starts, self._stacks, self._sums = starts, stacks, sums
        for read in self._pipeline.cut:
            self._value(read)
        self._block(self._program.program.root)
        return self._done

    def _write(self, copy: OperationCopy) -> None:
        node = copy.node
        if node.number == self._pipeline.found.node.number:
            self._segment(copy)
            return
        key = walk.key(node.op)
        form = Form.LOCAL if copy.layout is None else copy.layout
        if key in self._slices:
            made = self._read_layer(copy, *self._slices[key])
        elif key in self._updates:
            made = self._write_layer(copy, self._updates[key])
        elif key in self._additions and copy.layout is None:
            made = self._add(copy, *self._additions[key])
        elif node.op.name == CONSTRAINT:
            made = self._constrained(node.op, self._value(copy.reads[0]))
        else:
            super()._write(copy)
            return
        self._scopes[-1][node.results[0], form] = made

    def _segment(self, copy: OperationCopy) -> None:
        pipeline, found = self._pipeline, self._pipeline.found
        body = copy.node.blocks[1]
        everywhere = [self._value(copy.reads[number]) for number in found.everywhere]
        sizes = [len(self._starts), len(self._stacks), len(self._sums)]
        layers, schedule = counter(pipeline.segment), pipeline.schedule
        before = stablehlo.multiply(self._device.place, layers)
        if schedule.repeats > 1:
            turns = counter(schedule.stages * pipeline.segment)
            before = stablehlo.add(before, stablehlo.multiply(self._turn, turns))

        def iteration(count: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
            travelling, written, sums = _grouped(carried, sizes)
            self._layer = self._layer_of(count)
            number = stablehlo.add(before, count)
            counts = found.loop.body.arguments[found.loop.counter]
            with self._scope():
                scope = self._scopes[-1]
                scope[body.arguments[found.loop.counter], Form.LOCAL] = converted(
                    number, element_of(counts)
                )
                values = [
                    *zip(pipeline.travelling, travelling, strict=True),
                    *zip(pipeline.added, sums, strict=True),
                ]
                for carry, value in values:
                    scope[body.arguments[carry.number], Form.LOCAL] = value
                for place, value in zip(found.everywhere, everywhere, strict=True):
                    scope[body.arguments[place], Form.LOCAL] = value
                for stack, value in zip(pipeline.written, written, strict=True):
                    self._written[stack.number] = value
                self._block(body)
                left = [*pipeline.travelling, *pipeline.written, *pipeline.added]
                return [self._value(copy.returned[1][each.number]) for each in left]

        starting = [counter(0), *self._starts, *self._stacks, *self._sums]
        self._done = _grouped(counted_while(pipeline.segment, starting, iteration), sizes)

    def _layer_of(self, count: ir.Value) -> ir.Value:
        """The layer of an iteration, by its number among those of the device."""
        pipeline, layers = self._pipeline, self._pipeline.segment
        turn, repeats = self._turn, pipeline.schedule.repeats
        if pipeline.found.slope == -1:
            count = stablehlo.subtract(counter(layers - 1), count)
            turn = stablehlo.subtract(counter(repeats - 1), turn)
        if repeats == 1:
            return count
        return stablehlo.add(stablehlo.multiply(turn, counter(layers)), count)

    def _layer_box(self, layout: AxisLayout | None) -> Box:
        """Where the layer is in a stack, and in that the microbatch."""
        bounds = {0: (self._layer, 1)}
        if layout is not None:
            own = self._device.loop.own(layout)
            bounds |= chunk_box(own, self._chunk).bounds
        return Box(bounds, self._device.zero)

    def _read_layer(
        self, copy: OperationCopy, stack: ir.Value, layout: AxisLayout | None
    ) -> ir.Value:
        result = copy.node.op.results[0]
        made = self._layer_box(layout).slice(stack)
        if layout is None:
            # A slice that is for all microbatches; of some a microbatch's part is read.
            return made if copy.layout is None else read_chunk(made, copy.layout, self._chunk)
        own = self._device.loop.own(layout)
        return reshaped(made, shape_of(resized(result.type, own, self._chunk.length)))

    def _write_layer(self, copy: OperationCopy, stack: WrittenStack) -> ir.Value:
        before = self._written[stack.number]
        box = self._layer_box(stack.layout)
        part = self._value(copy.reads[1])
        if stack.combine is not None:
            term = self._masked(converted(part, stack.element), stack.combine)
            part = COMBINES[stack.combine](box.slice(before), term)
        return box.update(before, reshaped(part, box.type_in(before.type).shape))

    def _add(self, copy: OperationCopy, carry: PipelineCarry, so_far: int) -> ir.Value:
        total, term = (self._value(copy.reads[place]) for place in (so_far, 1 - so_far))
        term = converted(term, carry.element)
        return stablehlo.add(total, self._masked(term, Combine.SUM))

    def _masked(self, term: ir.Value, combine: Combine) -> ir.Value:
        """A term that changes nothing in idle ticks."""
        nothing = identity(ir.RankedTensorType(term.type), combine)
        return stablehlo.select(self._is_valid, term, nothing)

    def _constrained(self, constraint: ir.Operation, value: ir.Value) -> ir.Value:
        """The value, with what a constraint says of axes that XLA's partitioner divides."""
        sharding = _without(
            sdy.TensorShardingAttr(constraint.attributes["sharding"]), self._device.loop.manual
        )
        return value if sharding is None else sdy.ShardingConstraintOp(value, sharding).result


def _without(
    sharding: sdy.TensorShardingAttr, names: Sequence[str]
) -> sdy.TensorShardingAttr | None:
    """A sharding without some axes of the mesh; None where it says nothing then."""
    dimensions = [sdy.DimensionShardingAttr(each) for each in sharding.dimension_shardings]
    kept = [
        [axis for axis in each.axes if sdy.AxisRefAttr(axis).name not in names]
        for each in dimensions
    ]
    if not any(kept):
        return None
    return sdy.TensorShardingAttr.get(
        sharding.mesh_or_ref,
        [
            sdy.DimensionShardingAttr.get(axes, is_closed=each.is_closed)
            for axes, each in zip(kept, dimensions, strict=True)
        ],
    )


def _grouped(values: Sequence[ir.Value], sizes: Sequence[int]) -> list[list[ir.Value]]:
    """Consecutive values in groups of these sizes."""
    taken = iter(values)
    return [[next(taken) for _ in range(size)] for size in sizes]


def _sendable(element: ir.Type) -> ir.Type:
    """A type that holds every number of an element type, and that collectives take."""
    if isinstance(element, ir.IntegerType) and element.width < 8:
        return ir.IntegerType.get_signless(8) if element.width > 1 else element
    return element


def _summable(element: ir.Type) -> ir.Type:
    """A type that holds every number of an element type, and that collectives add in."""
    if isinstance(element, ir.IntegerType) and element.width < 32:
        return ir.IntegerType.get_signless(32)
    if isinstance(element, ir.FloatType) and element.width < 16:
        return ir.F32Type.get()
    return element
