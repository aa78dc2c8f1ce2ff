"""The plan of `split-loop`: the groups of loops that are split, where, and the loops left whole.

Where to split for a limit on memory follows from the memory of plans of the whole loops. The last
iterations of a forward loop are the first that its backward loop goes through, and their stacks are
freed first. So the later part keeps more. When the other part begins to recompute, the stacks of
the later part are free.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..framework.base import ListPlan
from ..framework.tables import Described, Kind, Left, Table
from ..framework.text import pluralize, size
from .groups import LEAST_TRIPS, LoopGroup


@dataclass(frozen=True)
class UniformPlan:
    """The memory and time of a plan that treats all iterations of a loop alike.

    Attributes:
      temp_bytes: peak of the temporary memory.
      stacked_bytes: the bytes of it in the loop's stacks; all iterations have the same share.
      seconds: the added time.
    """

    temp_bytes: int
    stacked_bytes: int
    seconds: float


@dataclass(frozen=True)
class SplitChoice:
    """Two plans for the two parts of a loop.

    Attributes:
      first: the plan of the first part, which keeps less.
      last: the plan of the last part.
      at: the iteration at which the last part begins.
      trip_count: the loop's trip count.
    """

    first: UniformPlan
    last: UniformPlan
    at: int
    trip_count: int

    @property
    def temp_bytes(self) -> float:
        """Returns the peak of the temporary memory.

        Memory other than stacks does not depend on the trip count. The peak is that of the last
        part, with the stacks of both parts, or that of the first part, with its own alone.
        """
        return max(self.first_bytes, self.last_bytes)

    @property
    def first_bytes(self) -> float:
        """Returns the peak while the first part recomputes; it rises with ``at``."""
        last = 1 - self.at / self.trip_count
        return self.first.temp_bytes - self.first.stacked_bytes * last

    @property
    def last_bytes(self) -> float:
        """Returns the peak while the last part recomputes; it falls as ``at`` rises."""
        first = self.at / self.trip_count
        both = self.first.stacked_bytes * first + self.last.temp_bytes
        return both - self.last.stacked_bytes * first

    @property
    def seconds(self) -> float:
        """Returns the added time."""
        return (
            self.first.seconds * self.at + self.last.seconds * (self.trip_count - self.at)
        ) / self.trip_count


def choose_split(
    limit_bytes: float, plans: Iterable[UniformPlan], trip_count: int
) -> SplitChoice | None:
    """Returns the split within the limit that adds the least time, of all pairs of uniform plans.

    None where no split adds less time than the best of the plans alone.
    """
    known = sorted(set(plans), key=lambda plan: (plan.temp_bytes, plan.stacked_bytes, plan.seconds))
    whole = [plan.seconds for plan in known if plan.temp_bytes <= limit_bytes]
    splits = [s for s in _splits(limit_bytes, known, trip_count) if s.temp_bytes <= limit_bytes]
    best = min(splits, key=lambda split: (split.seconds, split.temp_bytes), default=None)
    if best is None or (whole and min(whole) <= best.seconds):
        return None
    return best


def _splits(limit_bytes: float, plans: list[UniformPlan], trip_count: int) -> Iterator[SplitChoice]:
    """Yields the earliest split at which the last part holds the limit, for every two plans of
    which the first stacks less and takes more time: later splits take more time."""
    positions = range(LEAST_TRIPS, trip_count - LEAST_TRIPS + 1)
    for first, last in itertools.product(plans, plans):
        if first.stacked_bytes < last.stacked_bytes and first.seconds > last.seconds:
            splits = functools.partial(SplitChoice, first, last, trip_count=trip_count)
            found = bisect.bisect_left(
                positions, True, key=lambda at: splits(at=at).last_bytes <= limit_bytes
            )
            yield from (splits(at=at) for at in positions[found : found + 1])


MOST_PARTS = 3
"""The most parts of a loop: XLA's compile time grows with the number of bodies."""


class SplitPositionError(ValueError):
    """A loop cannot be split at the given iterations; the text, one line, says why."""


@dataclass(frozen=True)
class GroupSplit:
    """A group of loops that is split.

    Attributes:
      group: the loops.
      at: the iterations of the first loop at which a part begins, ascending, without 0.
      id: the decision's name.
    """

    group: LoopGroup
    at: tuple[int, ...]
    id: str = ""

    @property
    def trip_counts(self) -> tuple[int, ...]:
        """Returns the trip counts of the parts, in the order of the group's first loop."""
        bounds = (0, *self.at, self.group.trip_count)
        return tuple(end - start for start, end in itertools.pairwise(bounds))

    def __str__(self) -> str:
        parts = " + ".join(map(str, self.trip_counts))
        loops = pluralize(len(self.group.loops), "loop")
        stacks = pluralize(len(self.group.stacks), "stack")
        return (
            f"{self.group}: {self.group.trip_count} iterations become {parts} in {loops} that "
            f"share {stacks} of {size(self.group.stacked_bytes)}"
        )

    @property
    def description(self) -> str:
        return str(self)


@dataclass(frozen=True)
class SplitLoopPlan(ListPlan[GroupSplit]):
    """The groups of loops to split, in the order of the module, and the loops left whole.

    ``refusal`` is why no loop is split although the spec gives the iterations; empty otherwise.
    """

    refusal: str = ""

    def summary(self) -> str:
        if self.empty:
            why = (
                f": {told_whole(self.left[:1])}" if self.left else ", which no backward loop reads"
            )
            return f"no loop is split{why}"
        return "; ".join(map(str, self.decided))

    def effect(self) -> str:
        return f"{pluralize(len(self.decided), 'scan')} split"

    def decided_tables(self) -> tuple[Table, ...]:
        rows = tuple(
            (
                split.group.stacked_bytes,
                Described.at(split.group.loops[0].loop.op.location),
                split.group.trip_count,
                " + ".join(map(str, split.trip_counts)),
                len(split.group.loops),
                len(split.group.stacks),
            )
            for split in self.decided
        )
        return (Table("Loops that are split", _COLUMNS, rows),)


_COLUMNS = {
    "stacks take": Kind.BYTES,
    "scan": Kind.VALUE,
    "iterations": Kind.COUNT,
    "become": Kind.TEXT,
    "loops": Kind.COUNT,
    "stacks that they share": Kind.COUNT,
}


def told_whole(left: Iterable[Left]) -> str:
    """Names the loops that stay whole, and why, in a line."""
    return "; ".join(f"{_named(each.value)} stays whole: {each.reason}" for each in left)


def _named(loop: Described) -> str:
    name = loop.name or "a loop"
    return f"{name} ({loop.source})" if loop.source.line else name


def plan_split(group: LoopGroup, at: Iterable[int]) -> GroupSplit:
    """Returns the split of a group at these iterations of its first loop.

    Raises SplitPositionError where a part would be too short, or there would be too many parts.
    """
    positions = tuple(sorted(at))
    if not 1 <= len(positions) < MOST_PARTS:
        raise SplitPositionError(
            f"a loop is split into 2 to {MOST_PARTS} parts, not {len(positions) + 1}"
        )
    split = GroupSplit(group, positions)
    if min(split.trip_counts) < LEAST_TRIPS:
        where = ":".join(map(str, positions))
        raise SplitPositionError(
            f"split at {where}, its {group.trip_count} iterations leave a part with fewer than "
            f"{LEAST_TRIPS}"
        )
    return split


def even_positions(trip_count: int, parts: int) -> tuple[int, ...]:
    """Returns where parts of equal length begin; fewer parts if there are too few iterations."""
    parts = min(parts, trip_count // LEAST_TRIPS)
    return tuple(round(part * trip_count / parts) for part in range(1, parts))
