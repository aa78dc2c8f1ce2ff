"""Where to split loops for a limit on memory, from what plans of the whole loops take.

The last iterations of a forward loop are the first that its backward loop goes through, and what
they stack is freed first. So the part behind the split keeps more. When the other part begins to
recompute, the stacks of the part behind it are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .groups import LEAST_TRIPS


@dataclass(frozen=True)
class UniformPlan:
    """What a plan takes that treats all iterations of a loop alike.

    Attributes:
      temp_bytes: peak of the temporary memory.
      stacked_bytes: what the loop's stacks take of it; all iterations have the same share.
      seconds: the added time.
    """

    temp_bytes: int
    stacked_bytes: int
    seconds: float


@dataclass(frozen=True)
class SplitChoice:
    """Two plans for the two parts of a loop.

    Attributes:
      first: the plan of the part in front, which keeps less.
      last: the plan of the part behind.
      at: the iteration at which the part behind begins.
      trip_count: of the loop.
    """

    first: UniformPlan
    last: UniformPlan
    at: int
    trip_count: int

    @property
    def temp_bytes(self) -> float:
        """The peak of the temporary memory.

        What is not stacked does not depend on the trip count. It is the peak of the part behind,
        with the stacks of both parts, or that of the part in front, with its own alone.
        """
        first, last = self.at / self.trip_count, 1 - self.at / self.trip_count
        alone = self.first.temp_bytes - self.first.stacked_bytes * (1 - first)
        both = self.first.stacked_bytes * first + self.last.temp_bytes
        return max(alone, both - self.last.stacked_bytes * (1 - last))

    @property
    def seconds(self) -> float:
        """The added time."""
        return (
            self.first.seconds * self.at + self.last.seconds * (self.trip_count - self.at)
        ) / self.trip_count

    def at_of(self, trip_count: int) -> int | None:
        """About the same place in a loop of another trip count; None if that is too short."""
        if trip_count < 2 * LEAST_TRIPS:
            return None
        at = round(self.at * trip_count / self.trip_count)
        return min(max(at, LEAST_TRIPS), trip_count - LEAST_TRIPS)


def choose_split(
    limit_bytes: float, plans: Iterable[UniformPlan], trip_count: int
) -> SplitChoice | None:
    """The split within the limit that adds the least time, of all pairs of uniform plans.

    None where no split adds less time than the best of the plans alone.
    """
    known = sorted(set(plans), key=lambda plan: (plan.temp_bytes, plan.stacked_bytes, plan.seconds))
    whole = [plan.seconds for plan in known if plan.temp_bytes <= limit_bytes]
    splits = [split for split in _splits(known, trip_count) if split.temp_bytes <= limit_bytes]
    best = min(splits, key=lambda split: (split.seconds, split.temp_bytes), default=None)
    if best is None or (whole and min(whole) <= best.seconds):
        return None
    return best


def _splits(plans: list[UniformPlan], trip_count: int) -> Iterator[SplitChoice]:
    """Every split into two plans of which the first stacks less and takes more time."""
    for first in plans:
        for last in plans:
            if first.stacked_bytes < last.stacked_bytes and first.seconds > last.seconds:
                for at in range(LEAST_TRIPS, trip_count - LEAST_TRIPS + 1):
                    yield SplitChoice(first, last, at, trip_count)
