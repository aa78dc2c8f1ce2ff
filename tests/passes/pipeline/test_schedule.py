"""The schedule by itself: every item once, in time, and as idle as the formula says."""

from __future__ import annotations

import itertools

import pytest

from hloom.passes.pipeline.cost import SegmentWork, best_schedule, pipeline_seconds, sharded_seconds
from hloom.passes.pipeline.schedule import PipelineSchedule

pytestmark = pytest.mark.once

SCHEDULES = [
    PipelineSchedule(stages, microbatches, repeats)
    for stages, microbatches, repeats in itertools.product((2, 3, 4, 8), (2, 4, 8, 9), (1, 2, 3))
    if repeats == 1 or microbatches >= stages
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_item_runs_once_after_what_it_needs(schedule: PipelineSchedule) -> None:
    done: dict[tuple[int, int, int], int] = {}
    for tick, place in itertools.product(range(schedule.ticks), range(schedule.stages)):
        item = schedule.item(place, tick)
        if item is None:
            continue
        repeat, microbatch = item
        assert (place, *item) not in done
        done[place, repeat, microbatch] = tick
        if place:
            assert done[place - 1, repeat, microbatch] < tick
        elif repeat:
            assert done[schedule.stages - 1, repeat - 1, microbatch] < tick
    assert len(done) == schedule.stages * schedule.repeats * schedule.microbatches


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_bubble_is_the_share_of_idle_ticks(schedule: PipelineSchedule) -> None:
    idle = [
        schedule.item(place, tick) is None
        for place, tick in itertools.product(range(schedule.stages), range(schedule.ticks))
    ]
    assert sum(idle) / len(idle) == pytest.approx(schedule.bubble)
    drawn = "".join(text for _, text in schedule.picture())
    assert drawn.count(".") == sum(idle)


def test_the_picture_is_devices_by_ticks() -> None:
    picture = list(PipelineSchedule(3, 4, 1).picture())
    assert picture == [(0, "0 1 2 3 . ."), (1, ". 0 1 2 3 ."), (2, ". . 0 1 2 3")]


def test_repeats_are_taken_while_what_is_sent_is_little() -> None:
    possible = [PipelineSchedule(4, 8, repeats) for repeats in (1, 2, 4)]
    work = SegmentWork(busy_s=1.0, carried_bytes=8_000, weight_bytes=0)
    # A tick of one repeat takes 1/8 s, and sends 1,000 bytes: with 4 repeats 1/32 s.
    assert best_schedule([work], possible, rate=1e6).repeats == 4
    assert best_schedule([work], possible, rate=4e5).repeats == 2
    assert best_schedule([work], possible, rate=1e5).repeats == 1


def test_layers_are_dealt_out_where_that_takes_less_than_the_bubble() -> None:
    possible = [PipelineSchedule(4, 8, repeats) for repeats in (1, 2)]
    heavy = SegmentWork(busy_s=1.0, carried_bytes=0, weight_bytes=1_000_000)
    assert best_schedule([heavy], possible, rate=1e7).repeats == 2
    assert best_schedule([heavy], possible, rate=1e5).repeats == 1


def test_microbatches_are_taken_while_they_idle_less_than_they_add() -> None:
    possible = [PipelineSchedule(4, count, 1) for count in (4, 8, 16, 32, 64)]
    # (M + 3) ticks of 1/M s, which add to gradients for 1/85 s: least at M² = 3 · 85.
    work = SegmentWork(busy_s=1.0, carried_bytes=0, weight_bytes=0, sums_s=1 / 85)
    assert best_schedule([work], possible, rate=1e6).microbatches == 16
    # A microbatch takes 1/8 s however small it is.
    work = SegmentWork(busy_s=1.0, carried_bytes=0, weight_bytes=0, least_s=1 / 8)
    assert best_schedule([work], possible, rate=1e6).microbatches == 8


def test_seconds_of_a_pipeline_and_of_sharded_weights() -> None:
    work = SegmentWork(busy_s=1.0, carried_bytes=8_000, weight_bytes=1_000)
    # 11 ticks of 1/8 s, each with 1,000 bytes at 1e6 a second.
    seconds = pipeline_seconds([work], PipelineSchedule(4, 8, 1), 1e6)
    assert seconds == pytest.approx(11 * (1 / 8 + 1e-3))
    assert sharded_seconds([work], 4, 1e6) == pytest.approx(1.0)
    assert sharded_seconds([work], 4, 100.0) == pytest.approx(7.5)
