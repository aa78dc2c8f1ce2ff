"""Chooses microbatches and repeats: the requested numbers, else the fastest by the cost model.

It also warns the user about the schedule: FSDP that is as fast, ticks that send for longer than
they compute, residuals that exceed the device's memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from jax.extend.mlir import ir

from ..analysis.cost import seconds
from ..analysis.dimension_flow.result import site
from ..analysis.shardings.shardings import Shardings
from ..framework.errors import NotPossibleError
from ..framework.target import Target
from ..framework.text import seconds as shown_seconds
from ..framework.text import size
from ..ir import walk
from ..ir.build import typed
from ..ir.ops import facts_of
from ..ir.types import tensor_bytes
from ..phase_loops.exits import AccumulatorRule
from .batch import LoopBatch
from .cost import (
    SegmentWork,
    best_schedule,
    link_rate,
    pipeline_seconds,
    sharded_seconds,
    tick_seconds,
)
from .loop import PipelinedLoop
from .mesh_axis import StageAxis
from .schedule import PipelineSchedule
from .segments import LayerLoop

LoopAndBatch = tuple[LayerLoop, LoopBatch]


class ScheduleChoice:
    """Chooses the schedule of the loops of a module.

    Args:
      axis: the axis that the layers are on.
      shardings: the module's shardings.
      target: the module's target.
      made: the stacks that loops over layers make, which are no weights.
      rule: the type of sums over microbatches.
    """

    def __init__(
        self,
        axis: StageAxis,
        shardings: Shardings,
        target: Target,
        made: Collection[ir.Value],
        rule: AccumulatorRule,
    ) -> None:
        self._axis = axis
        self._shardings = shardings
        self._target = target
        self._made = made
        self._rule = rule
        self._rate = link_rate(target.speed, axis.devices)

    def schedule(
        self, loops: Sequence[LoopAndBatch], microbatches: int | None, repeats: int | None
    ) -> PipelineSchedule:
        """Returns the schedule of all loops. Raises NotPossibleError if it is impossible."""
        counts = self._microbatches([batch for _, batch in loops], microbatches)
        stages = self._axis.count
        layers = math.gcd(*(found.layers for found, _ in loops))
        if not counts:
            raise NotPossibleError("its batch has one element on a device", loops[0][0].loop.op)
        if repeats is None and self._rate is not None:
            of_layers = range(1, max(1, layers // stages) + 1)
            turns = [each for each in of_layers if layers % (stages * each) == 0] or [1]
        else:
            turns = [repeats or 1]
        possible = [
            PipelineSchedule(stages, count, turn)
            for count in counts
            for turn in turns
            if turn == 1 or count >= stages
        ]
        if not possible:
            raise NotPossibleError(
                f"{repeats} repeats take a microbatch for each of {stages} devices at least; "
                f"there are {counts[-1]}"
            )
        if self._rate is None or len(possible) == 1:
            return possible[0]
        works = [self._work(*each) for each in loops]
        return best_schedule(works, possible, self._rate)

    def _microbatches(self, batches: Sequence[LoopBatch], wanted: int | None) -> list[int]:
        """Returns possible numbers of microbatches, the one to take without a cost model first."""
        common = math.gcd(*(batch.size for batch in batches))
        possible = [number for number in range(2, common + 1) if common % number == 0]
        if wanted is not None and wanted not in possible:
            batch = next(each for each in batches if each.size % wanted or wanted < 2)
            raise NotPossibleError(
                f"{wanted} microbatches do not divide {batch.text}"
                + (f", of which a device has {batch.size}" if batch.devices > 1 else "")
                + f": want one of {', '.join(map(str, possible)) or 'none'}"
            )
        if wanted is not None:
            return [wanted]
        stages = self._axis.count
        enough = [number for number in possible if number >= 2 * stages]
        if self._rate is None:
            return enough[:1] or possible[-1:]
        return [number for number in possible if number >= stages] or possible[-1:]

    def _work(self, found: LayerLoop, batch: LoopBatch) -> SegmentWork:
        index = batch.flow.program.index
        results = found.loop.op.results
        travelling = [
            found.loop.op.operands[number]
            for number in found.carried
            if batch.flow.of(index[results[number]]).is_split
        ]
        weights = [each.value for each in found.read if each.value not in self._made]
        sums = [
            results[each.number]
            for each in found.loop.stacks
            if batch.flow.of(index[results[each.number]]).combine is not None
        ]
        weight_bytes = sum(self._own_bytes(value, value.type) for value in weights)
        # The sum and the microbatch's term are read, and the sum is written.
        sums_bytes = 3 * sum(
            self._own_bytes(value, typed(value, element=self._rule(value))) for value in sums
        )
        speed, stages = self._target.speed, self._axis.count
        kernels = sum(facts_of(op.name).launches_kernel for op in walk.operations(found.loop.op))
        return SegmentWork(
            busy_s=seconds(found.loop.op, speed) / self._axis.devices,
            carried_bytes=sum(tensor_bytes(value.type) or 0 for value in travelling)
            // batch.devices,
            weight_bytes=weight_bytes,
            least_s=max(
                weight_bytes / stages / speed.bytes_per_s,
                kernels * speed.kernel_s * found.layers / stages,
            ),
            sums_s=sums_bytes / stages / speed.bytes_per_s,
        )

    def _own_bytes(self, stack: ir.Value, type_: ir.Type) -> int:
        """Returns the bytes of all layers on one device of each stage together."""
        placement = self._shardings.placement(stack)
        counts = {} if placement is None else placement.counts
        parts = math.prod(count for axis, count in counts.items() if axis)
        return (tensor_bytes(type_) or 0) // parts

    def instead(self, loops: Sequence[PipelinedLoop]) -> str:
        """Describes FSDP over the same devices, where it would be as fast."""
        if self._rate is None:
            return ""
        works = [self._work(each.found, each.batch) for each in loops]
        own_s = pipeline_seconds(works, loops[0].schedule, self._rate)
        sharded_s = sharded_seconds(works, self._axis.count, self._rate)
        if sharded_s > own_s:
            return ""
        return (
            f"FSDP over the same {self._axis.count} devices is as fast: "
            f"{shown_seconds(sharded_s)} in these loops against {shown_seconds(own_s)}"
        )

    def warnings(self, loops: Sequence[PipelinedLoop], block: ir.Block) -> Iterator[str]:
        """Yields the problems of a schedule, in sentences.

        Args:
          loops: the plan's loops.
          block: the step's block.
        """
        schedule = loops[0].schedule
        remedy = (
            f"With repeats=1 a device sends {schedule.repeats} times less"
            if schedule.repeats > 1
            else f"Have {self._axis.name} over fewer devices, or over faster links"
        )
        for each in loops if self._rate is not None else ():
            assert self._rate is not None
            busy_s, _ = tick_seconds(self._work(each.found, each.batch), schedule, self._rate)
            sent_s = each.tick_bytes / self._rate
            if sent_s > busy_s:
                yield (
                    f"{site(each.found.loop.op)}: in each of {schedule.ticks} ticks a device sends "
                    f"{size(each.tick_bytes)} for {shown_seconds(sent_s)}, at "
                    f"{self._rate / 1e9:g} GB/s, and computes for {shown_seconds(busy_s)}. {remedy}"
                )
                break
        yield from self._without_room(loops, block)

    def _without_room(self, loops: Sequence[PipelinedLoop], block: ir.Block) -> Iterator[str]:
        usable = self._target.usable_bytes
        if usable is None:
            return
        arguments = sum(
            int((tensor_bytes(value.type) or 0) * self._shardings.share(value))
            for value in block.arguments
        )
        residuals, room = sum(each.residual_bytes for each in loops), usable - arguments
        if residuals <= room:
            return
        text = (
            f"Residuals of {size(residuals)} stay on a device, which has {size(max(room, 0))} "
            "beside the step's arguments"
        )
        batch = math.gcd(*(each.batch.size for each in loops))
        divisors = (each for each in range(2, batch // 2 + 1) if batch % each == 0)
        groups = next((each for each in divisors if residuals / each <= room), None)
        if groups is not None:
            text += (
                f": `accumulate{{microbatches={groups}}}` in front makes them "
                f"{size(residuals // groups)}; `remat` and jax.checkpoint make them less, too"
            )
        yield text
