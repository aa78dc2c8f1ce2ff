"""Estimates a step's time by the cost model with a pipeline, and with FSDP over the same devices.

A tick takes a device's share of the work, but no less than to read the weights of its segment and
to start its kernels, and adds to the segment's gradients. The transfer to the next device is
exposed: XLA starts it after the segment that makes the value, and the next tick waits for it. So
more microbatches idle less and cost more passes over weights and gradients. FSDP gathers each
layer's weights while it computes with the layer before, so that it takes the longer of both. The
optimizer and the reduction of gradients over other axes are the same on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..framework.target import Speed
from .schedule import PipelineSchedule

MOST_SENT = 0.05
"""The share by which sending may lengthen a tick, for repeats that the user did not request."""


@dataclass(frozen=True)
class SegmentWork:
    """The work of a loop over layers in the cost model.

    Attributes:
      busy_s: a device's share of the work.
      carried_bytes: the bytes of the whole batch that travel, on one device.
      weight_bytes: the weights that it reads, of all layers, on one device of each stage together.
      least_s: the least time of a microbatch on a device, however small it is.
      sums_s: the time to add a microbatch's gradients to those of a device's layers.
    """

    busy_s: float
    carried_bytes: int
    weight_bytes: int
    least_s: float = 0.0
    sums_s: float = 0.0


def link_rate(speed: Speed, devices: int) -> float | None:
    """Returns the bytes a second that a device sends to one of so many; None where unknown."""
    is_near = speed.link_devices is None or devices <= speed.link_devices
    return speed.link_bytes_per_s if is_near else speed.network_bytes_per_s


def tick_seconds(work: SegmentWork, schedule: PipelineSchedule, rate: float) -> tuple[float, float]:
    """Returns the seconds in which a device computes in a tick, and in which it sends."""
    busy_s = max(work.busy_s / schedule.microbatches, work.least_s) + work.sums_s
    return busy_s / schedule.repeats, work.carried_bytes / schedule.microbatches / rate


def pipeline_seconds(
    loops: Sequence[SegmentWork], schedule: PipelineSchedule, rate: float
) -> float:
    """Returns the time of the loops, with the permutation of layers in a circular schedule."""
    ticks = schedule.ticks * sum(sum(tick_seconds(work, schedule, rate)) for work in loops)
    if schedule.repeats == 1:
        return ticks
    # Each device keeps one layer in S, and the gradients go the same way back.
    weights = max(work.weight_bytes for work in loops) / schedule.stages
    return ticks + 2 * weights * (1 - 1 / schedule.stages) / rate


def best_schedule(
    loops: Sequence[SegmentWork], possible: Sequence[PipelineSchedule], rate: float
) -> PipelineSchedule:
    """Returns the fastest of some schedules, one of which is without repeats."""

    def is_exposed(schedule: PipelineSchedule) -> bool:
        sent = [tick_seconds(work, schedule, rate) for work in loops]
        return any(send_s > MOST_SENT * busy_s for busy_s, send_s in sent)

    allowed = [each for each in possible if each.repeats == 1 or not is_exposed(each)]
    return min(allowed, key=lambda each: (pipeline_seconds(loops, each, rate), each.items))


def sharded_seconds(loops: Sequence[SegmentWork], devices: int, rate: float) -> float:
    """Returns the time of the loops with weights sharded over the devices instead (FSDP)."""
    return sum(max(work.busy_s, work.weight_bytes * (1 - 1 / devices) / rate) for work in loops)
