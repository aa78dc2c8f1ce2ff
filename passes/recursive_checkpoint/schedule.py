"""Schedules: into which segments a loop's iterations are cut, from the bytes of carry and residual.

A schedule has a level for each nesting. On a level, ``count`` segments of ``length`` iterations
keep the carry at their border, and are computed again; the iterations after them, the rest, keep
their residuals. The next level cuts a segment in the same way while it is computed again. So no
iteration is computed more often than there are levels, besides the first time.

Source: A. Griewank and A. Walther, Algorithm 799: revolve, 2000. Their binomial schedule is the
optimum for states that take as much as residuals. Segments of equal length are counted loops, so
that a program does not grow with the number of iterations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

LEAST = 2
"""The fewest segments, and the fewest iterations of one. XLA unrolls a loop of one iteration. A
segment that is computed again would then merge with the first computation."""

_AROUND = 6
"""Lengths tried on each side of the optimum of the continuous problem."""

_MOST_SEGMENTS = 512
"""The most segments on a level that is not the last: the search does not grow with the trips."""


@dataclass(frozen=True)
class SegmentLevel:
    """The segments of one level: ``rest`` iterations after them keep their residuals."""

    count: int
    length: int
    rest: int

    def __str__(self) -> str:
        return f"{self.count} x {self.length}" + (f" + {self.rest}" if self.rest else "")


@dataclass(frozen=True)
class SegmentSchedule:
    """Levels, the outermost first; each has the iterations of a segment of the one before it."""

    levels: tuple[SegmentLevel, ...]

    def kept_bytes(self, carry_bytes: int, residual_bytes: int) -> int:
        """Returns the bytes of borders and residuals that are alive at once, at most."""
        inner = self.levels[-1].length * residual_bytes
        for level in reversed(self.levels):
            inner = level.count * carry_bytes + max(level.rest * residual_bytes, inner)
        return inner

    @property
    def repeated(self) -> int:
        """Returns how many iterations are computed again, in all."""
        found = 0
        for level in reversed(self.levels):
            found = level.count * (level.length + found)
        return found

    def __str__(self) -> str:
        return ", each ".join(map(str, self.levels))


def choose(
    trips: int,
    carry_bytes: int,
    residual_bytes: int,
    *,
    levels: int = 1,
    kept: float = 0.0,
    segments: int | None = None,
) -> SegmentSchedule | None:
    """Returns the schedule of the least bytes; None where there are too few iterations.

    Args:
      trips: the iterations.
      carry_bytes: the bytes of the carry at a border.
      residual_bytes: those of an iteration's residuals.
      levels: how many levels; fewer where there are too few iterations.
      kept: the share of the iterations that keep their residuals.
      segments: the segments of the outermost level, the rest counted as one; None for any.
    """

    @functools.cache
    def best(trips: int, levels: int, kept_trips: int) -> SegmentSchedule | None:
        def cost(schedule: SegmentSchedule) -> tuple[int, int]:
            # Iterations that were to keep their residuals and do not count as if they did.
            missed = max(kept_trips - schedule.levels[0].rest, 0) if kept_trips else 0
            taken = schedule.kept_bytes(carry_bytes, residual_bytes) + missed * residual_bytes
            return taken, schedule.repeated

        lengths = _lengths(trips, levels, kept_trips, max(carry_bytes, 1) / max(residual_bytes, 1))
        found = (with_length(trips, length, levels, kept_trips) for length in lengths)
        return min(filter(None, found), key=cost, default=None)

    def with_length(
        trips: int, length: int, levels: int, kept_trips: int
    ) -> SegmentSchedule | None:
        if length < LEAST:
            return None
        # The rest takes no more memory than a segment that is computed again, or what is asked for.
        inner = best(length, levels - 1, 0) if levels > 1 else None
        alone = length * residual_bytes
        inner_bytes = alone if inner is None else inner.kept_bytes(carry_bytes, residual_bytes)
        most = max(kept_trips, min(length, inner_bytes // max(residual_bytes, 1)))
        count = -(-(trips - most) // length)
        if count * length > trips:
            count -= 1
        if count < LEAST:
            return None
        level = SegmentLevel(count, length, trips - count * length)
        return SegmentSchedule((level, *(() if inner is None else inner.levels)))

    kept_trips = min(round(kept * trips), trips)
    if segments is not None:
        length = -(-(trips - kept_trips) // (segments - (kept_trips > 0)))
        return with_length(trips, length, levels, kept_trips)
    return best(trips, levels, kept_trips)


def _lengths(trips: int, levels: int, kept_trips: int, ratio: float) -> Iterable[int]:
    """Returns lengths of a segment around the optimum; ``ratio`` is that of carry to residual."""
    open_ = max(trips - kept_trips, 1)
    longest = trips // LEAST
    if levels == 1:
        optimum = min(max(round(math.sqrt(open_ * ratio)), LEAST), longest)
        return range(max(optimum - _AROUND, LEAST), min(optimum + _AROUND, longest) + 1)
    counts = range(LEAST, min(_MOST_SEGMENTS, open_ // LEAST) + 1)
    return sorted({-(-open_ // count) for count in counts})
