"""Schedules cover all iterations, and take about the least memory that their levels can."""

from __future__ import annotations

import itertools
import math

import pytest

from hloom.passes.recursive_checkpoint.schedule import LEAST, SegmentLevel, SegmentSchedule, choose

pytestmark = pytest.mark.once


def covers(schedule: SegmentSchedule, trips: int) -> None:
    for level in schedule.levels:
        assert min(level.count, level.length) >= LEAST
        assert level.rest >= 0
        assert level.count * level.length + level.rest == trips
        trips = level.length


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (1, 30), (50, 1), (0, 8)], ids=str)
def test_all_iterations_are_in_a_segment_or_after_them(levels: int, sizes: tuple[int, int]) -> None:
    for trips in (*range(8, 90), 100_000):
        for share in (None, 0.1, 0.3, 0.75):
            most = None if share is None else int(share * trips * sizes[1])
            found = choose(trips, *sizes, levels=levels, most_bytes=most)
            if found is not None:
                covers(found, trips)
                assert found.repeated <= levels * trips
                assert most is None or found.kept_bytes(*sizes) <= most


def test_one_level_takes_the_square_root() -> None:
    found = choose(1024, 2, 1)
    assert found.kept_bytes(2, 1) <= 2 * math.sqrt(2 * 1024)
    assert found.repeated < 1024


def test_no_other_length_takes_less() -> None:
    for trips in (16, 47, 256):
        for carry, residual in ((1, 1), (3, 1), (1, 7)):
            found = choose(trips, carry, residual)
            assert found is not None
            least = min(
                made.kept_bytes(carry, residual)
                for segments in range(3, trips // 2)
                if (made := choose(trips, carry, residual, segments=segments)) is not None
            )
            assert found.kept_bytes(carry, residual) <= least


def test_each_level_takes_less_and_computes_more() -> None:
    found = [choose(100_000, 1, 1, levels=levels) for levels in (1, 2, 3)]
    sizes = [each.kept_bytes(1, 1) for each in found if each is not None]
    work = [each.repeated for each in found if each is not None]
    assert len(sizes) == 3
    assert sizes == sorted(sizes, reverse=True)
    assert work == sorted(work)
    # n levels take (n + 1) times the root of that order.
    for levels, size in enumerate(sizes, 1):
        assert size <= 1.2 * (levels + 1) * 100_000 ** (1 / (levels + 1))


def test_more_bytes_never_repeat_more() -> None:
    for carry, residual in ((1, 1), (2, 1), (1, 30)):
        least = choose(4096, carry, residual, levels=3)
        before, bytes_ = math.inf, least.kept_bytes(carry, residual)
        while bytes_ < 4096 * residual:
            found = choose(4096, carry, residual, levels=3, most_bytes=bytes_)
            # Lengths are whole numbers, so that a step may repeat some iterations more.
            assert found.repeated <= 1.01 * before
            before, bytes_ = found.repeated, bytes_ * 5 // 4 + 1


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_the_least_bytes_are_enough(levels: int) -> None:
    for trips, carry, residual in itertools.product((1000, 100_000), (1, 7), (1, 8)):
        least = choose(trips, carry, residual, levels=levels)
        bytes_ = least.kept_bytes(carry, residual)
        found = choose(trips, carry, residual, levels=levels, most_bytes=bytes_)
        assert found.kept_bytes(carry, residual) <= bytes_


def test_iterations_that_fit_keep_their_residuals() -> None:
    for share in (0.25, 0.5, 0.9):
        found = choose(1000, 1, 1, most_bytes=int(1000 * share))
        assert found.repeated == pytest.approx(1000 * (1 - share), abs=8)


def test_no_schedule_of_two_levels_repeats_less() -> None:
    """Beside all schedules of equal segments in two levels."""
    trips, carry, residual = 60, 1, 2
    made = [
        SegmentSchedule((SegmentLevel(n, length, trips - n * length), *inner))
        for n in range(LEAST, trips)
        for length in range(LEAST, trips // n + 1)
        for inner in [
            (),
            *(
                (SegmentLevel(m, short, length - m * short),)
                for m in range(LEAST, length)
                for short in range(LEAST, length // m + 1)
            ),
        ]
    ]
    for most in range(10, 60, 3):
        fitting = [each.repeated for each in made if each.kept_bytes(carry, residual) <= most]
        found = choose(trips, carry, residual, levels=2, most_bytes=most)
        assert (found is None) == (not fitting)
        assert found is None or found.repeated <= 1.05 * min(fitting)


@pytest.mark.parametrize(
    ("trips", "segments", "told"), [(100, 10, "9 x 10 + 10"), (9, 4, "3 x 2 + 3"), (3, None, None)]
)
def test_segments_that_are_asked_for(trips: int, segments: int | None, told: str | None) -> None:
    found = choose(trips, 1, 1, segments=segments)
    assert (None if found is None else str(found)) == told
