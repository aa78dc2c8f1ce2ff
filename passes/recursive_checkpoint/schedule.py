"""Schedules cut a loop's iterations into segments, by the bytes of the carry and of the residuals.

A schedule has a level for each nesting. On a level, ``count`` segments of ``length`` iterations
keep the carry at their border, and are computed again; the iterations after them, the rest, keep
their residuals. The next level cuts a segment in the same way while it is computed again. So no
iteration is computed more often than there are levels, besides the first time.

Source: A. Griewank and A. Walther, Algorithm 799: revolve, 2000. Their binomial schedule is the
optimum where each state is freed on the way back, and takes as much as residuals. Segments of equal
length are counted loops, so that a program does not grow with the number of iterations.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LEAST = 2
"""The fewest segments, and the fewest iterations of one. XLA unrolls a loop of one iteration. A
segment that is computed again would then merge with the first computation."""

_AROUND = 3
"""Counts of segments tried on each side of one that was found."""

_MORE = 8
"""On a level that is not the last each count tried is one part in so many above the one before it,
so that the search grows with the logarithm of the iterations."""

_EXACT = 128
"""The least bytes of several levels are found to one part in so many."""


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


@functools.lru_cache(maxsize=1024)
def choose(
    trips: int,
    carry_bytes: int,
    residual_bytes: int,
    *,
    levels: int = 1,
    most_bytes: int | None = None,
    segments: int | None = None,
) -> SegmentSchedule | None:
    """Returns the schedule that repeats the fewest iterations; None where none is possible.

    Args:
      trips: the iterations.
      carry_bytes: the bytes of the carry at a border.
      residual_bytes: those of an iteration's residuals.
      levels: how many levels, at most.
      most_bytes: the bytes that the schedule may take; None for the least that it can.
      segments: the segments of the outermost level, the rest counted as one; None for any.
    """
    carry_bytes, residual_bytes = max(carry_bytes, 1), max(residual_bytes, 1)

    def most_count(trips: int, bytes_: int) -> int:
        by_bytes = (bytes_ - LEAST * residual_bytes) // carry_bytes
        return min(trips // LEAST, by_bytes)

    @functools.cache
    def reach(bytes_: int, levels: int) -> int:
        """Returns about how many iterations some bytes are enough for."""
        if not levels:
            return bytes_ // residual_bytes
        most = most_count(trips, bytes_)
        if levels == 1:
            found = min(max((bytes_ // carry_bytes - 1) // 2, LEAST), most)
            counts: Iterator[int] | range = range(max(found - 1, LEAST), min(found + 1, most) + 1)
        else:
            counts = _counts(most)
        return max((reached(bytes_, levels, count) for count in counts), default=0)

    def reached(bytes_: int, levels: int, count: int) -> int:
        left = bytes_ - count * carry_bytes
        return count * reach(left, levels - 1) + left // residual_bytes

    def with_count(trips: int, bytes_: int, levels: int, count: int) -> SegmentSchedule | None:
        left = bytes_ - count * carry_bytes
        open_ = trips - left // residual_bytes
        length = min(max(-(-open_ // count), LEAST), trips // count)
        rest = trips - count * length
        if length < LEAST or rest * residual_bytes > left:
            return None
        level = SegmentLevel(count, length, rest)
        if length * residual_bytes <= left:
            return SegmentSchedule((level,))
        inner = best(length, left, levels - 1) if length <= reach(left, levels - 1) else None
        return None if inner is None else SegmentSchedule((level, *inner.levels))

    @functools.cache
    def best(trips: int, bytes_: int, levels: int) -> SegmentSchedule | None:
        if not levels:
            return None
        most = most_count(trips, bytes_)
        if levels == 1:
            # The fewest segments that are short enough: the others keep their residuals.
            low, high = LEAST, min(max((bytes_ // carry_bytes - 1) // 2, LEAST), most)
            while low < high:
                middle = (low + high) // 2
                if reached(bytes_, 1, middle) < trips:
                    low = middle + 1
                else:
                    high = middle
            return least_of(trips, bytes_, 1, near(low, most))
        found = best(trips, bytes_, levels - 1)
        if found is None:
            found = least_of(trips, bytes_, levels, _counts(most))
            if found is not None:
                found = least_of(trips, bytes_, levels, near(found.levels[0].count, most))
        return found

    def near(count: int, most: int) -> range:
        return range(max(count - _AROUND, LEAST), min(count + _AROUND, most) + 1)

    def least_of(
        trips: int, bytes_: int, levels: int, counts: Iterable[int]
    ) -> SegmentSchedule | None:
        found = (with_count(trips, bytes_, levels, count) for count in counts)
        return min(filter(None, found), key=lambda each: each.repeated, default=None)

    def within(bytes_: int) -> SegmentSchedule | None:
        if segments is None:
            return best(trips, bytes_, levels)
        return with_count(trips, bytes_, levels, segments - 1)

    if most_bytes is not None:
        found = within(most_bytes)
        if found is None:
            # Not all counts are tried: a search with more bytes may have found fewer.
            least = choose(trips, carry_bytes, residual_bytes, levels=levels, segments=segments)
            if least is not None and least.kept_bytes(carry_bytes, residual_bytes) <= most_bytes:
                found = least
        return found
    low, high = 0, trips * (carry_bytes + residual_bytes)
    found = within(high)
    while found is not None and high - low > (1 if levels == 1 else max(high // _EXACT, 1)):
        middle = (low + high) // 2
        less = within(middle)
        if less is None:
            low = middle
        else:
            found, high = less, less.kept_bytes(carry_bytes, residual_bytes)
    return found


def _counts(most: int) -> Iterator[int]:
    """Yields counts of segments, up to the most."""
    count = LEAST
    while count <= most:
        yield count
        count += max(count // _MORE, 1)
