"""The device memory of a module before and after the passes, and the values at its peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hloom.dumps.read.module import ModuleDump
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.tools.report import units
from hloom.tools.report.sources import Json, Named, Sources, entries, number, whole, whole_or_none

if TYPE_CHECKING:
    from hloom.passes.analysis.memory_model.profile import MemoryProfile

MOST_OWNERS = 8
"""How many owners of the peak a table tells of."""


@dataclass(frozen=True)
class StepBytes:
    """What a step takes of a device, in bytes.

    Attributes:
      argument_bytes: what it is given.
      output_bytes: what it returns and does not lie where an argument was.
      temp_bytes: everything else while it runs.
    """

    argument_bytes: int
    output_bytes: int
    temp_bytes: int

    @property
    def step_bytes(self) -> int:
        """All of it."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes


@dataclass(frozen=True)
class Bound:
    """The budget that a module was compiled for.

    Attributes:
      text: as the spec has it, e.g. "60GiB", "50%", "fit".
      bytes: the bound; None where it is not known.
      of_temp: it bounds the temporaries alone, not the whole step.
    """

    text: str
    bytes: int | None
    of_temp: bool

    @property
    def described(self) -> str:
        """The budget, with its bytes where the spec does not name them."""
        if self.bytes is None or self.text == units.size(self.bytes):
            return self.text
        return f"{self.text}, {units.size(self.bytes)}"

    def holds(self, figures: StepBytes) -> bool | None:
        """Whether a step keeps to it; None where that is not known."""
        if self.bytes is None:
            return None
        return (figures.temp_bytes if self.of_temp else figures.step_bytes) <= self.bytes


@dataclass(frozen=True)
class OwnerRow:
    """Values of one line that are alive when most memory is in use.

    Attributes:
      value: one of them.
      count: how many there are.
      start, end: when the first begins and the last ends, from 0, the program's start, to 1.
      note: what else there is to say, e.g. "inside of a loop".
    """

    value: Named
    count: int
    start: float
    end: float
    note: str = ""

    @property
    def size_bytes(self) -> int:
        """What all of them take."""
        return self.value.size_bytes * self.count


@dataclass(frozen=True)
class PeakOwners:
    """Whose the memory is when most of it is in use.

    Attributes:
      title: of what program, by whose count.
      peak_bytes: what is in use then.
      peak_at: when that is, from 0 to 1.
      rows: the largest, in order.
      others: how many more there are, and their bytes.
      is_before: of the program as it was before the passes.
    """

    title: str
    peak_bytes: int
    peak_at: float
    rows: tuple[OwnerRow, ...]
    others: int
    others_bytes: int
    is_before: bool = False


@dataclass(frozen=True)
class MemoryView:
    """A module's memory; what is not known is None.

    Attributes:
      xla: XLA's figures for what runs.
      xla_before: XLA's figures of the program as it was, where it was compiled that way too.
      before, after: by hloom's model of memory; `after` only where the passes changed something.
      bound: the budget.
      live_ranges: what lives when in XLA's schedule, as the dump has it.
      owners: tables of the peak's owners, the one that tells most first.
    """

    xla: StepBytes | None
    xla_before: StepBytes | None
    before: MemoryProfile | None
    after: MemoryProfile | None
    bound: Bound | None
    live_ranges: Json | None
    owners: tuple[PeakOwners, ...]

    @property
    def ends(self) -> tuple[int, int] | None:
        """Bytes before and after, counted in the same way; None where not both are known."""
        if self.xla is not None and self.xla_before is not None:
            return self.xla_before.step_bytes, self.xla.step_bytes
        if self.before is not None and self.after is not None:
            return self.before.step_bytes, self.after.step_bytes
        return None

    @property
    def bars(self) -> tuple[tuple[str, str, StepBytes], ...]:
        """What to show side by side: "before" or "after", who counted, and the figures."""
        modelled = (("before", self.before), ("after", self.after))
        bars = [(when, "hloom's model", _figures(c)) for when, c in modelled if c is not None]
        if self.xla_before is not None:
            bars.append(("before", "XLA", self.xla_before))
        if self.xla is not None:
            bars.append(("after" if self.after or not self.before else "compiled", "XLA", self.xla))
        return tuple(bars)


def _figures(curve: MemoryProfile) -> StepBytes:
    output_bytes = max(curve.output_bytes - curve.alias_bytes, 0)
    return StepBytes(curve.argument_bytes, output_bytes, curve.temp_bytes)


def memory_of(dump: ModuleDump) -> MemoryView:
    """XLA's figures and the budget, and of the rest what a module folder has as it is."""
    figures = _xla_figures(dump.memory)
    return MemoryView(
        xla=figures,
        xla_before=None if figures is None else _unmodified(dump, figures),
        before=None,
        after=None,
        bound=_bound(dump),
        live_ranges=dump.live_ranges,
        owners=(),
    )


def _xla_figures(memory: Mapping[str, Any] | None) -> StepBytes | None:
    try:
        if memory is None:
            return None
        output_bytes = whole(memory["output_bytes"]) - whole(memory["alias_bytes"])
        arguments, temp = whole(memory["argument_bytes"]), whole(memory["temp_bytes"])
        return StepBytes(arguments, max(output_bytes, 0), temp)
    except (KeyError, TypeError, ValueError):
        return None


def _unmodified(dump: ModuleDump, figures: StepBytes) -> StepBytes | None:
    """XLA's figures of the attempt in which nothing was recomputed, where there was one.

    Args:
      dump: the module.
      figures: of what runs: recomputation changes neither arguments nor results.
    """
    for index, attempt in enumerate(dump.attempts, start=1):
        for file in sorted(dump.folder.glob(f"attempt-{index}/plan-*-remat.json")):
            plan = dump.json(f"attempt-{index}/{file.name}")
            if isinstance(plan, dict) and not plan.get("blocks") and not plan.get("scans"):
                temp_bytes = _known(attempt.get("temp_bytes"))
                return None if temp_bytes is None else replace(figures, temp_bytes=temp_bytes)
    return None


def _known(value: object) -> int | None:
    """A size; None where a damaged file has something else."""
    try:
        return whole_or_none(value)
    except TypeError:
        return None


def _bound(dump: ModuleDump) -> Bound | None:
    try:
        passes = Pipeline.parse(dump.spec).passes
    except SpecError:
        return None
    budgets = (getattr(each, "budget", None) for each in passes)
    budget = next(filter(None, budgets), None)
    if not isinstance(budget, Budget):
        return None
    target = entries(dump.manifest, "target")
    if budget.least:
        return None
    if budget.percent is not None:
        temp_bytes = next((_known(each.get("temp_bytes")) for each in dump.attempts), None)
        limit = None if temp_bytes is None else int(temp_bytes * budget.percent / 100)
        return Bound(f"{budget.percent:g} % of its temporaries", limit, of_temp=True)
    if budget.size_bytes is not None:
        return Bound(units.size(budget.size_bytes), budget.size_bytes, of_temp=False)
    return Bound("what fits the device", _known(target.get("usable_bytes")), of_temp=False)


def xla_owners(ranges: Json, sources: Sources) -> PeakOwners:
    """The owners of the peak by XLA's assignment of buffers.

    Raises TypeError, LookupError or ValueError where the file has not what a plot of it needs.
    """
    _check_curve(ranges)
    last = max(whole(ranges["instructions"]) - 1, 1)
    values = ranges["values"]
    rows = [
        OwnerRow(
            value=Named(
                str(value["operation"] or value["name"]),
                sources.place(str(value["line"])),
                units.short_type(str(value["type"])),
                whole(value["bytes"]),
            ),
            count=1,
            start=number(value["start"]) / last,
            end=number(value["end"]) / last,
            note=str(value["name"]) if value["operation"] else "",
        )
        for value in (values[index] for index in ranges["at_peak"])
        # The peak is of temporaries; what is given and returned is there all the time.
        if value["kind"] == "temp"
    ]
    title = "XLA's temporaries at their peak, in what runs"
    return _owners(title, rows, whole(ranges["peak_bytes"]), whole(ranges["peak_at"]) / last)


def _check_curve(ranges: Json) -> None:
    whole_or_none(ranges.get("temp_bytes"))
    end, place = whole(ranges["instructions"]), -1
    for time, size_bytes in ranges.get("curve") or ():
        whole(size_bytes)
        if not place < whole(time) <= end:
            raise ValueError("its curve does not go on from one instruction to a later one")
        place = time


def model_owners(
    title: str, curve: MemoryProfile, sources: Sources, *, is_before: bool = False
) -> PeakOwners:
    """The owners of the peak of a program by hloom's model."""
    last = max(len(curve.points) - 1, 1)
    rows = [
        OwnerRow(
            value=Named(
                each.name, sources.place(each.line), units.short_type(each.type), each.bytes
            ),
            count=1,
            start=each.start / last,
            end=each.end / last,
            note="inside of a loop" if each.in_loop else "",
        )
        for each in curve.owners
    ]
    peak_bytes = curve.points[curve.peak_at].bytes if curve.points else 0
    found = _owners(title, rows, peak_bytes, curve.peak_at / last)
    return replace(found, is_before=is_before)


def _owners(title: str, values: list[OwnerRow], peak_bytes: int, peak_at: float) -> PeakOwners:
    rows = sorted(_together(values), key=lambda row: -row.size_bytes)
    shown, others = tuple(rows[:MOST_OWNERS]), rows[MOST_OWNERS:]
    return PeakOwners(
        title=title,
        peak_bytes=peak_bytes or sum(row.size_bytes for row in rows) or 1,
        peak_at=peak_at,
        rows=shown,
        others=sum(row.count for row in others),
        others_bytes=sum(row.size_bytes for row in others),
    )


def _together(values: list[OwnerRow]) -> list[OwnerRow]:
    """One owner for the values of one line and type: each layer of a model has its own."""
    rows: dict[tuple[object, ...], OwnerRow] = {}
    for each in values:
        value = each.value
        same = (value.leaf, value.phase, value.place, value.type, value.size_bytes)
        first = rows.get(same)
        rows[same] = (
            each
            if first is None
            else OwnerRow(
                value=first.value,
                count=first.count + 1,
                start=min(first.start, each.start),
                end=max(first.end, each.end),
                note=first.note,
            )
        )
    return list(rows.values())
