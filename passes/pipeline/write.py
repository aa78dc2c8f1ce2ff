"""Replaces loops over layers by pipelines.

Each is a manual computation over the pipeline's axis. Its operands are the stacks that the loop
reads, of which each device has its layers, the loop's initial values, and its other reads. Its
results are the stacks that the loop makes, and its final carries. `ticks` writes the work of each
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from ..analysis.purity import erase_dead, erase_unread
from ..analysis.signatures.signature import AxisLayout
from ..ir import moves, walk
from ..ir.build import iota, reshaped
from ..ir.build_collectives import ManualPart, manual_computation
from ..ir.erase import erase
from ..ir.locations import scoped
from ..ir.mesh import manual_axes_attribute
from ..ir.values import defining_op, is_read
from ..phase_loops.devices import DeviceShare
from .circular import Dealing
from .loop import PipelinedLoop
from .mesh_axis import AxesByDimension, StageAxis
from .places import Places
from .ticks import DeviceWriter

SCOPE = "hloom.pipeline"
"""Name-stack component of the operations that are added."""


class PipelineWriter:
    """Writes the pipelines of a module, the first one first.

    Args:
      axis: the axis of the pipelines.
      channels: numbers of collectives, one after the other.
    """

    def __init__(self, axis: StageAxis, channels: Iterator[int]) -> None:
        self._axis = axis
        self._channels = channels
        self._replaced: dict[ir.Value, ir.Value] = {}
        self._gone: list[ir.Operation] = []
        self._dealing = Dealing(axis.count)

    def write(self, pipeline: PipelinedLoop) -> None:
        """Writes one pipeline; `clear` then erases the replaced operations of all."""
        loop = pipeline.found.loop
        with ir.InsertionPoint(loop.op), scoped(loop.op.location, SCOPE):
            made = _LoopWriter(
                pipeline, self._axis, self._channels, self._dealing, self._now
            ).write()
            for number, value in made.items():
                result = loop.op.results[number]
                self._replaced[result] = value
                result.replace_all_uses_with(value)
        self._gone.append(loop.op)

    def clear(self) -> None:
        """Erases the loops, and operations that only they read."""
        read = [defining_op(value) for op in self._gone for value in walk.values_read(op)]
        erase(*self._gone)
        erase_unread(op for op in read if op is not None)

    def _now(self, value: ir.Value) -> ir.Value:
        """Returns the current replacement of a planned value."""
        return self._replaced.get(value, value)


@dataclass(frozen=True)
class _Operand:
    """An operand of the manual computation: a value, and its split over the devices."""

    value: ir.Value
    split: AxesByDimension


@dataclass(frozen=True)
class _Result:
    """A result of the manual computation that replaces one of the loop."""

    number: int
    type: ir.Type
    split: AxesByDimension
    is_stack: bool = False


class _LoopWriter:
    def __init__(
        self,
        pipeline: PipelinedLoop,
        axis: StageAxis,
        channels: Iterator[int],
        dealing: Dealing,
        now: Callable[[ir.Value], ir.Value],
    ) -> None:
        self._pipeline = pipeline
        self._axis = axis
        self._channels = channels
        self._dealing = dealing
        self._now = now
        self._loop = pipeline.found.loop
        self._places = Places(pipeline, axis)
        self._constants = {walk.key(each.op) for each in pipeline.plan.program.program.root.nodes}
        self._returned = {
            number for number, result in enumerate(self._loop.op.results) if is_read(result)
        }

    def write(self) -> dict[int, ir.Value]:
        """Returns the values that replace the loop's results, by number."""
        pipeline, loop = self._pipeline, self._loop
        operands = self._operands()
        results = [
            *(
                _Result(each.number, each.type, self._places.of_result(each))
                for each in pipeline.carries
                if each.number in self._returned
            ),
            *(
                _Result(each.number, each.type, self._places.of_written(each), is_stack=True)
                for each in pipeline.written
            ),
        ]
        made = manual_computation(
            [(each.value, self._part(each.value.type, each.split)) for each in operands],
            [self._part(each.type, each.split) for each in results],
            manual_axes_attribute(self._axis.sizes, self._places.manual),
            lambda arguments: self._device(list(arguments)),
        )
        for inner in reversed(list(walk.code_blocks(made))):
            erase_dead(inner)
        found = {number: self._now(loop.op.operands[number]) for number in loop.invariant}
        if loop.counter in self._returned:
            kind = ir.RankedTensorType(loop.op.results[loop.counter].type)
            count = ir.IntegerAttr.get(kind.element_type, loop.trip_count)
            found[loop.counter] = stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, count))
        for each, value in zip(results, made.results, strict=True):
            repeats = pipeline.schedule.repeats if each.is_stack else 1
            found[each.number] = self._dealing.in_order(value, repeats)
        return {number: value for number, value in found.items() if number in self._returned}

    def _part(self, type_: ir.Type, split: AxesByDimension) -> ManualPart:
        sharding = self._axis.sharding(type_, split, self._places.manual)
        return ManualPart(type_, sharding, self._axis.part(type_, split))

    def _held(self) -> dict[ir.Value, ir.Value]:
        """Returns the loop's initial values, by value, after the work to do before it."""
        pipeline, loop, early = self._pipeline, self._loop.op, self._pipeline.early
        starts = [loop.operands[each.number] for each in pipeline.travelling]
        starts = [each for each in dict.fromkeys(starts) if not self._is_constant(each)]
        if not early.ops or not starts:
            return {}
        moves.move_before(loop, early.ops)
        barrier = stablehlo.OptimizationBarrierOp([*map(self._now, starts), *early.made])
        held = list(barrier.results)
        for value, after in zip(early.made, held[len(starts) :], strict=True):
            value.replace_all_uses_except(after, barrier.operation)
        return dict(zip(starts, held, strict=False))

    def _operands(self) -> list[_Operand]:
        pipeline, axis = self._pipeline, self._axis
        values = pipeline.plan.program.program.values
        repeats = pipeline.schedule.repeats
        found = [_Operand(iota([axis.count], 0), {0: (axis.name,)})]
        if pipeline.axes:
            found.append(_Operand(iota([pipeline.parts], 0), {0: pipeline.axes}))
        for each, layout in zip(pipeline.found.read, pipeline.read, strict=True):
            stack = self._dealing.dealt(self._now(each.value), repeats)
            found.append(_Operand(stack, self._places.of_stack(layout)))
        held = self._held()
        for carry in pipeline.travelling:
            start = self._loop.op.operands[carry.number]
            found.append(self._made_by_batch(start, carry.layout, held.get(start)))
        for number, form in pipeline.cut:
            assert isinstance(form, AxisLayout)
            found.append(self._made_by_batch(values[number], form))
        found += [_Operand(self._now(values[number]), {}) for number in pipeline.whole]
        return found

    def _is_constant(self, value: ir.Value) -> bool:
        op = defining_op(value)
        return op is None or walk.key(op) in self._constants

    def _made_by_batch(
        self, value: ir.Value, layout: AxisLayout | None, made: ir.Value | None = None
    ) -> _Operand:
        """Returns a value that every device of the axis gets, each computing its part.

        XLA would otherwise compute all of it on each: for a loss head it gathers the logits'
        gradient, which is several times as large as the result.
        """
        places, axis = self._places, self._axis
        made = made or self._now(value)
        split = places.by_part(value.type, layout)
        if split is not None and not self._is_constant(value):
            made = sdy.ShardingConstraintOp(made, axis.sharding(made.type, split, ())).result
        return _Operand(made, places.by_batch(layout))

    def _device(self, arguments: list[ir.Value]) -> list[ir.Value]:
        """Writes the computation of one device; returns its results."""
        pipeline = self._pipeline
        taken = iter(arguments)
        stage = reshaped(next(taken), [])
        part = reshaped(next(taken), []) if pipeline.axes else None
        read = [next(taken) for _ in pipeline.found.read]
        starts = [next(taken) for _ in pipeline.travelling]
        cut = {read: next(taken) for read in pipeline.cut}
        whole = {number: next(taken) for number in pipeline.whole}
        share = DeviceShare(
            pipeline.parts,
            {
                (value, form.axis): made
                for (value, form), made in cut.items()
                if isinstance(form, AxisLayout)
            },
            part,
        )
        outside = {**{value: made for (value, _), made in cut.items()}, **whole}
        device = DeviceWriter(self._places, self._returned, self._channels, stage, share, outside)
        return device.run(read, starts)
