"""What a pipeline takes in a step by the cost model, and FSDP over the same devices beside it.

A tick takes a device's share of the work, and what it sends to the next device is exposed: XLA
starts the transfer behind the segment that makes it, and the next tick waits for it. FSDP gathers
each layer's weights while it computes with the layer before, so that it takes the longer of both.
The optimizer and the reduction of gradients over other axes are the same on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..framework.target import Speed
from .schedule import PipelineSchedule

MOST_SENT = 0.05
"""What a tick may take longer for what it sends, for repeats that nobody asked for."""


@dataclass(frozen=True)
class LoopWork:
    """A loop over layers as the cost model sees it.

    Attributes:
      busy_s: a device's share of the work.
      carried_bytes: what travels of the whole batch, on one device.
      weight_bytes: the weights that it reads, of all layers, on one device of each stage together.
    """

    busy_s: float
    carried_bytes: int
    weight_bytes: int


def link_rate(speed: Speed, devices: int) -> float | None:
    """Bytes a second that a device sends to one of so many; None where that is not known."""
    is_near = speed.link_devices is None or devices <= speed.link_devices
    return speed.link_bytes_per_s if is_near else speed.network_bytes_per_s


def tick_seconds(work: LoopWork, schedule: PipelineSchedule, rate: float) -> tuple[float, float]:
    """What a device computes in a tick, and what it sends."""
    return work.busy_s / schedule.items, work.carried_bytes / schedule.microbatches / rate


def pipeline_seconds(loops: Sequence[LoopWork], schedule: PipelineSchedule, rate: float) -> float:
    """What the loops take, with what dealing out layers sends in a circular schedule."""
    ticks = schedule.ticks * sum(sum(tick_seconds(work, schedule, rate)) for work in loops)
    if schedule.repeats == 1:
        return ticks
    # Each device keeps one layer in S, and the gradients go the same way back.
    weights = max(work.weight_bytes for work in loops) / schedule.stages
    return ticks + 2 * weights * (1 - 1 / schedule.stages) / rate


def best_repeats(
    loops: Sequence[LoopWork], possible: Sequence[PipelineSchedule], rate: float
) -> PipelineSchedule:
    """The fastest of some schedules, the first of which is without repeats."""

    def is_exposed(schedule: PipelineSchedule) -> bool:
        sent = [tick_seconds(work, schedule, rate) for work in loops]
        return any(send_s > MOST_SENT * busy_s for busy_s, send_s in sent)

    allowed = [each for each in possible if each.repeats == 1 or not is_exposed(each)]
    return min(allowed, key=lambda each: (pipeline_seconds(loops, each, rate), each.repeats))


def sharded_seconds(loops: Sequence[LoopWork], devices: int, rate: float) -> float:
    """What the same loops take where the weights are sharded over the devices instead (FSDP)."""
    return sum(max(work.busy_s, work.weight_bytes * (1 - 1 / devices) / rate) for work in loops)
