"""The plan of `recursive-checkpoint`: the loops that become segments, and those that stay whole."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..framework.base import ListPlan
from ..framework.feedback import PlanRecord
from ..framework.structure import Whole
from ..framework.tables import Described, Kind, Table
from ..framework.text import pluralize, size
from ..ir.locations import called, operation_name, source_of
from ..ir.types import tensor_bytes
from ..split_loop.groups import LoopGroup, left_whole, splittable
from .again import Again, computed_again, writers
from .rewrite import SCOPE
from .schedule import SegmentSchedule, choose

MOST_LEVELS = 3
"""The most levels of segments: each repeats an iteration once more."""


@dataclass(frozen=True)
class Segmented:
    """Loops that become loops over segments.

    Attributes:
      group: the loops.
      schedule: the segments.
      carry_bytes: the bytes that a border keeps.
      stacked_bytes: the bytes of the stacks of residuals before.
      residual_bytes: those of an iteration's residuals in a segment.
      id: the decision's name.
    """

    group: LoopGroup
    schedule: SegmentSchedule
    carry_bytes: int
    stacked_bytes: int
    residual_bytes: int
    id: str = ""

    @property
    def kept_bytes(self) -> int:
        """Returns the bytes of borders and residuals that are alive at once."""
        return self.schedule.kept_bytes(self.carry_bytes, self.residual_bytes)

    @property
    def description(self) -> str:
        where = self.group.loops[0].loop.op.location
        line = source_of(where).short
        scan = f"the scan at {line}" if line else called(where, "a loop")
        level = self.schedule.levels[0]
        count = len(self.schedule.levels)
        deeper = "" if count == 1 else f", in {count} levels"
        last = f"; the last {level.rest} keep their residuals" if level.rest else ""
        return (
            f"the carry of {scan} is kept every {pluralize(level.length, 'step')} and the steps "
            f"between are computed again{deeper}{last}"
        )


@dataclass(frozen=True)
class SegmentedLoop:
    """The sizes of a loop, by which its schedule is chosen.

    Attributes:
      trips: the iterations.
      carry_bytes: the bytes that a border keeps.
      stacked_bytes: the bytes of the stacks of residuals before.
      repeated: how many iterations are computed again.
      segments: those of the outermost level, with the iterations after them as one.
    """

    trips: Whole
    carry_bytes: Whole
    stacked_bytes: Whole
    repeated: Whole
    segments: Whole

    def within(self, share: float, residuals: float, levels: int) -> SegmentSchedule | None:
        """Returns the schedule of least work in a share of the stacks' bytes, None where none is,
        if a later pass leaves a share of an iteration's residuals."""
        residual_bytes = _residual_bytes(self.trips, self.stacked_bytes, residuals)
        most_bytes = int(share * self.stacked_bytes)
        return choose(
            self.trips, self.carry_bytes, residual_bytes, levels=levels, most_bytes=most_bytes
        )


@dataclass(frozen=True)
class SegmentsRecord(PlanRecord):
    """The loops of a plan, for the choice of other segments."""

    loops: tuple[SegmentedLoop, ...] = ()

    @property
    def is_unmodified(self) -> bool:
        return not self.loops


@dataclass(frozen=True)
class RecursiveCheckpointPlan(ListPlan[Segmented]):
    """The loops that become segments, in the order of the module, and the loops left whole."""

    @property
    def record(self) -> SegmentsRecord:
        """Returns the loops that become segments."""
        return SegmentsRecord(
            loops=tuple(
                SegmentedLoop(
                    each.group.trip_count,
                    each.carry_bytes,
                    each.stacked_bytes,
                    each.schedule.repeated,
                    each.schedule.levels[0].count + 1,
                )
                for each in self.decided
            )
        )

    def summary(self) -> str:
        if self.empty:
            why = f": {self.left[0]}" if self.left else ", which no backward loop reads"
            return f"no loop is computed again in segments{why}"
        return "; ".join(
            f"{each.description}, {size(each.kept_bytes)} instead of {size(each.stacked_bytes)}"
            for each in self.decided
        )

    def effect(self) -> str:
        return "; ".join(each.description for each in self.decided)

    def decided_tables(self) -> tuple[Table, ...]:
        rows = tuple(
            (
                each.stacked_bytes,
                each.kept_bytes,
                Described.at(each.group.loops[0].loop.op.location),
                each.group.trip_count,
                str(each.schedule),
                each.schedule.repeated,
                len(each.group.loops),
            )
            for each in self.decided
        )
        return (Table("Loops that are computed again in segments", _COLUMNS, rows),)


_COLUMNS = {
    "stacks took": Kind.BYTES,
    "take": Kind.BYTES,
    "scan": Kind.VALUE,
    "iterations": Kind.COUNT,
    "segments": Kind.TEXT,
    "computed again": Kind.COUNT,
    "loops": Kind.COUNT,
}


@dataclass(frozen=True)
class SegmentOptions:
    """The options of the pass, by the names that it has."""

    segments: int | None
    levels: int | None
    share: float | None
    residuals: float
    min_trips: int
    min_bytes: int


def plan_module(module: ir.Module, wanted: SegmentOptions) -> RecursiveCheckpointPlan:
    """Returns the plan of a module, its calls inlined; the function is pure."""
    groups, left = splittable(module.operation)
    decided: list[Segmented] = []
    for group in groups:
        found = _segmented(group, wanted, f"scan-{len(decided)}")
        if isinstance(found, Segmented):
            decided.append(found)
        else:
            left.append(left_whole(group.loops[0].loop.op, found))
    return RecursiveCheckpointPlan(tuple(decided), tuple(left))


def _segmented(group: LoopGroup, wanted: SegmentOptions, name: str) -> Segmented | str:
    """Returns the segments of a group, or why its loops stay whole."""
    if any(SCOPE in operation_name(each.loop.op.location) for each in group.loops):
        return "it is computed again in segments already"
    trips = group.trip_count
    if trips < wanted.min_trips:
        return f"it has {pluralize(trips, 'iteration')}, fewer than min_trips={wanted.min_trips}"
    carry_bytes = 0
    for number, stacks in writers(group).items():
        loop = group.loops[number].loop
        found = computed_again(loop, stacks)
        if not isinstance(found, Again):
            return found
        carry_bytes += found.carry_bytes(loop)
    stacked = sum(tensor_bytes(each.stack.update.results[0].type) or 0 for each in group.stacks)
    residual_bytes = _residual_bytes(trips, stacked, wanted.residuals)
    choose_in = functools.partial(
        choose, trips, carry_bytes, residual_bytes, segments=wanted.segments
    )
    schedule = None
    if wanted.share is not None:
        levels, most_bytes = wanted.levels or MOST_LEVELS, int(wanted.share * stacked)
        schedule = choose_in(levels=levels, most_bytes=most_bytes) or choose_in(levels=levels)
    else:
        schedule = choose_in(levels=wanted.levels or 1)
    if schedule is None:
        return f"{pluralize(trips, 'iteration')} cannot be such segments of two or more"
    made = Segmented(group, schedule, carry_bytes, stacked, residual_bytes, name)
    if stacked - made.kept_bytes < wanted.min_bytes:
        return (
            f"its stacks take {size(stacked)}, and borders and a segment {size(made.kept_bytes)}: "
            f"that saves less than min_bytes={size(wanted.min_bytes)}"
        )
    return made


def _residual_bytes(trips: int, stacked_bytes: int, residuals: float) -> int:
    return -(-math.ceil(stacked_bytes * residuals) // trips)
