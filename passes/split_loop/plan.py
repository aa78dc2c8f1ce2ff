"""The plan of `split-loop`: the groups of loops that are split, where, and the loops left whole."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..framework.base import Decision
from ..framework.text import pluralize, size
from .groups import LEAST_TRIPS, LoopGroup, WholeLoop, describe

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
    """

    group: LoopGroup
    at: tuple[int, ...]

    @property
    def trip_counts(self) -> tuple[int, ...]:
        """The trip counts of the parts, in the order of the group's first loop."""
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

    def to_json(self) -> dict[str, object]:
        return {
            **describe(self.group.loops[0].loop.op),
            "at": list(self.at),
            "trips": list(self.trip_counts),
            "loops": len(self.group.loops),
            "stacks": len(self.group.stacks),
            "stacked_bytes": self.group.stacked_bytes,
        }


@dataclass(frozen=True)
class SplitPlan:
    """The groups of loops to split, in the order of the module, and the loops left whole.

    ``refusal`` is why no loop is split although the spec gives the iterations; empty otherwise.
    """

    splits: tuple[GroupSplit, ...]
    whole: tuple[WholeLoop, ...] = ()
    refusal: str = ""

    @property
    def empty(self) -> bool:
        return not self.splits

    def summary(self) -> str:
        if self.empty:
            why = f": {self.whole[0]}" if self.whole else ", which no backward loop reads"
            return f"no loop is split{why}"
        return "; ".join(map(str, self.splits))

    def effect(self) -> str:
        """What it does to the program, in few words."""
        return f"{pluralize(len(self.splits), 'scan')} split"

    def to_json(self) -> dict[str, object]:
        return {
            "splits": [split.to_json() for split in self.splits],
            "whole": [loop.to_json() for loop in self.whole],
        }

    def decisions(self) -> tuple[Decision, ...]:
        """One for each group of loops."""
        return tuple(
            Decision(f"scan-{number}", str(split)) for number, split in enumerate(self.splits)
        )

    def restricted_to(self, ids: Collection[str]) -> SplitPlan:
        kept = (
            split
            for decision, split in zip(self.decisions(), self.splits, strict=True)
            if decision.id in ids
        )
        return SplitPlan(tuple(kept), self.whole)


def plan_split(group: LoopGroup, at: Iterable[int]) -> GroupSplit:
    """The split of a group at these iterations of its first loop.

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
    """Where parts of equal length begin; fewer parts where the iterations do not allow so many."""
    parts = min(parts, trip_count // LEAST_TRIPS)
    return tuple(round(part * trip_count / parts) for part in range(1, parts))
