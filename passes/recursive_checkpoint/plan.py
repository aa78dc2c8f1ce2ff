"""The plan of `recursive-checkpoint`: the loops that become segments, and those that stay whole."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from ..framework.base import ListPlan
from ..framework.tables import Described, Kind, Table
from ..framework.text import pluralize, size
from ..ir.locations import called, operation_name, source_of
from ..ir.types import tensor_bytes
from ..split_loop.groups import LoopGroup, left_whole, splittable
from .again import Again, computed_again, writers
from .rewrite import SCOPE
from .schedule import SegmentSchedule, choose


@dataclass(frozen=True)
class Segmented:
    """Loops that become loops over segments.

    Attributes:
      group: the loops.
      schedule: the segments.
      carry_bytes: the bytes that a border keeps.
      stacked_bytes: the bytes of the stacks of residuals before.
      id: the decision's name.
    """

    group: LoopGroup
    schedule: SegmentSchedule
    carry_bytes: int
    stacked_bytes: int
    id: str = ""

    @property
    def kept_bytes(self) -> int:
        """Returns the bytes of borders and residuals that are alive at once."""
        trips = self.group.trip_count
        return self.schedule.kept_bytes(self.carry_bytes, -(-self.stacked_bytes // trips))

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
class RecursiveCheckpointPlan(ListPlan[Segmented]):
    """The loops that become segments, in the order of the module, and the loops left whole."""

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
    levels: int
    kept: float
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
    schedule = choose(
        trips,
        carry_bytes,
        -(-stacked // trips),
        levels=wanted.levels,
        kept=wanted.kept,
        segments=wanted.segments,
    )
    if schedule is None:
        return f"{pluralize(trips, 'iteration')} cannot be such segments of two or more"
    made = Segmented(group, schedule, carry_bytes, stacked, name)
    if stacked - made.kept_bytes < wanted.min_bytes:
        return (
            f"its stacks take {size(stacked)}, and borders and a segment {size(made.kept_bytes)}: "
            f"that saves less than min_bytes={size(wanted.min_bytes)}"
        )
    return made
