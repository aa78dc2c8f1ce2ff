"""Writes a segment: some iterations of a loop over layers, on one microbatch, on one device.

`phase_loops` writes the body, as in any loop over chunks. This module writes the loop itself,
slices of stacks, which are read and written in place in the device's part of the stack at [layer,
microbatch], and sums over microbatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from ..analysis.signatures.signature import AxisLayout, Combine
from ..ir import walk
from ..ir.build import Box, converted, counted_while, counter, reshaped
from ..ir.shardings import CONSTRAINT, without_axes
from ..ir.values import defining_op, element_of, shape_of
from ..phase_loops.contents import Form, OperationCopy
from ..phase_loops.exits import COMBINES, identity
from ..phase_loops.slices import ChunkStart, chunk_box, read_chunk, resized
from ..phase_loops.write import ChunkWriter
from .loop import PipelineCarry, WrittenStack
from .places import Places


class SegmentWriter(ChunkWriter):
    """Writes a segment on a microbatch: some iterations of the loop over layers, on one device.

    Args:
      places: the shardings of the pipeline's values.
      outside: the device's values from outside, by number.
      place: the device's place in the order of the segments.
      chunk: the microbatch.
      turn: the repeat.
      is_valid: whether the device is not idle.
      stacks: the device's part of the stacks that the loop reads.
    """

    def __init__(
        self,
        places: Places,
        outside: Mapping[int, ir.Value],
        place: ir.Value,
        chunk: ChunkStart,
        turn: ir.Value,
        is_valid: ir.Value,
        stacks: Sequence[ir.Value],
    ) -> None:
        pipeline = places.pipeline
        copies = pipeline.plan.loops[0].copies
        super().__init__(pipeline.plan.program, copies, chunk, outside.__getitem__)
        self._places = places
        self._place = place
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
        """Writes the segment; returns the values that travel, the stacks, and the sums."""
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
        before = stablehlo.multiply(self._place, layers)
        if schedule.repeats > 1:
            turns = counter(schedule.stages * pipeline.segment)
            before = stablehlo.add(before, stablehlo.multiply(self._turn, turns))

        def iteration(count: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
            travelling, written, sums = grouped(carried, sizes)
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
                left = [
                    *(each.number for each in pipeline.travelling),
                    *(each.number for each in pipeline.written),
                    *(each.number for each in pipeline.added),
                ]
                return [self._value(copy.returned[1][number]) for number in left]

        starting = [counter(0), *self._starts, *self._stacks, *self._sums]
        self._done = grouped(counted_while(pipeline.segment, starting, iteration), sizes)

    def _layer_of(self, count: ir.Value) -> ir.Value:
        """Returns the layer of an iteration, by its number among those of the device."""
        pipeline, layers = self._pipeline, self._pipeline.segment
        turn, repeats = self._turn, pipeline.schedule.repeats
        if pipeline.found.slope == -1:
            count = stablehlo.subtract(counter(layers - 1), count)
            turn = stablehlo.subtract(counter(repeats - 1), turn)
        if repeats == 1:
            return count
        return stablehlo.add(stablehlo.multiply(turn, counter(layers)), count)

    def _layer_box(self, layout: AxisLayout | None, layer: ir.Value) -> Box:
        """Returns the place of a layer in a stack, and in that of the microbatch."""
        bounds = {0: (layer, 1)}
        if layout is not None:
            own = self._places.own(layout)
            bounds |= chunk_box(own, self._chunk).bounds
        return Box(bounds, self._chunk.zero)

    def _read_layer(
        self, copy: OperationCopy, stack: ir.Value, layout: AxisLayout | None
    ) -> ir.Value:
        result = copy.node.op.results[0]
        made = self._layer_box(layout, self._layer).slice(stack)
        if layout is None:
            # A slice may be for all microbatches; of others a microbatch's part is read.
            return made if copy.layout is None else read_chunk(made, copy.layout, self._chunk)
        own = self._places.own(layout)
        return reshaped(made, shape_of(resized(result.type, own, self._chunk.length)))

    def _write_layer(self, copy: OperationCopy, stack: WrittenStack) -> ir.Value:
        before = self._written[stack.number]
        part = self._value(copy.reads[1])
        layer = self._layer if stack.combine is None else _behind_product(self._layer, part)
        box = self._layer_box(stack.layout, layer)
        if stack.combine is not None:
            term = self._masked(converted(part, stack.element), stack.combine)
            part = COMBINES[stack.combine](box.slice(before), term)
        return box.update(before, reshaped(part, box.type_in(before.type).shape))

    def _add(self, copy: OperationCopy, carry: PipelineCarry, so_far: int) -> ir.Value:
        total, term = (self._value(copy.reads[place]) for place in (so_far, 1 - so_far))
        term = converted(term, carry.element)
        return stablehlo.add(total, self._masked(term, Combine.SUM))

    def _masked(self, term: ir.Value, combine: Combine) -> ir.Value:
        """Returns a term that changes nothing in idle ticks."""
        nothing = identity(ir.RankedTensorType(term.type), combine)
        return stablehlo.select(self._is_valid, term, nothing)

    def _constrained(self, constraint: ir.Operation, value: ir.Value) -> ir.Value:
        """Returns the value, constrained along the axes that XLA's partitioner divides."""
        sharding = without_axes(
            sdy.TensorShardingAttr(constraint.attributes["sharding"]), self._places.manual
        )
        return value if sharding is None else sdy.ShardingConstraintOp(value, sharding).result


_BETWEEN = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "convert", "reshape", "transpose")
)
"""Operations between a product and the slice of a stack that it is added to."""


def _behind_product(index: ir.Value, term: ir.Value) -> ir.Value:
    """Returns an index that is available no sooner than the operands of the product of a term.

    jax 0.12 loads slices beside other work as soon as their index is computed. Those of a layer's
    sums, which are as large as its weights, would be in memory through all of the layer.
    """
    op = defining_op(term)
    block = None if op is None else op.block
    while op is not None and op.name in _BETWEEN:
        op = defining_op(op.operands[0])
    if op is None or op.name != "stablehlo.dot_general" or op.block != block:
        return index
    last = _last_made(op)
    if last is None:
        return index
    with ir.InsertionPoint(op):
        held, index = stablehlo.OptimizationBarrierOp([last, index]).results
    for number, value in enumerate(op.operands):
        if value == last:
            op.operands[number] = held
    return index


def _last_made(op: ir.Operation) -> ir.Value | None:
    """Returns the operand of an operation that is made last in its block; None where none is."""
    found: tuple[ir.Value, ir.Operation] | None = None
    for value in op.operands:
        maker = defining_op(value)
        if maker is None or maker.block != op.block:
            continue
        if found is None or found[1].is_before_in_block(maker):
            found = value, maker
    return None if found is None else found[0]


def grouped(values: Sequence[ir.Value], sizes: Sequence[int]) -> list[list[ir.Value]]:
    """Groups consecutive values by these sizes."""
    taken = iter(values)
    return [[next(taken) for _ in range(size)] for size in sizes]
