"""The device memory of a module before and after the passes, and the values at its peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.dumps.read.dump import ModuleDump
from hloom.passes.analysis.memory_model.profile import MemoryProfile, memory_profile
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.framework import registry
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.structure import Whole, read
from hloom.passes.framework.target import Target
from hloom.show import units
from hloom.xla.live_ranges import LiveRanges
from hloom_tools.document.sources import Named, Sources, by_line, entries
from hloom_tools.report.tips.alive import Tip
from hloom_tools.report.totals import Total, by_argument, by_layer

_MOST_OWNERS = 8
"""The most owners of the peak in a table."""


@dataclass(frozen=True)
class StepBytes:
    """The bytes of a step on a device; results in the memory of an argument do not count."""

    argument_bytes: int
    output_bytes: int
    temp_bytes: int

    @property
    def step_bytes(self) -> int:
        """Returns the sum."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes


@dataclass(frozen=True)
class Bound:
    """The budget that a module was compiled for; `of_temp` bounds the temporaries alone.

    Attributes:
      tolerance: the factor up to which it counts as held.
    """

    text: str
    bytes: int | None
    of_temp: bool
    tolerance: float = 1.0

    @property
    def described(self) -> str:
        """Returns the budget as text, with its bytes where the spec does not name them."""
        if self.bytes is None or self.text == units.size(self.bytes):
            return self.text
        return f"{self.text}, {units.size(self.bytes)}"

    def holds(self, figures: StepBytes) -> bool | None:
        """Whether a step is within the budget; None where unknown."""
        if self.bytes is None:
            return None
        return self._bounded(figures) <= self.bytes * self.tolerance

    def overrun(self, figures: StepBytes) -> str:
        """Formats the bounded figure and the bound where it does not hold: "57.2 of 54.2 MiB"; else
        empty."""
        if self.bytes is None or self.holds(figures):
            return ""
        over = units.of_limit(self._bounded(figures), self.bytes)
        return f"{over} for temporaries" if self.of_temp else over

    def measured(self, figures: StepBytes) -> str:
        """Formats the bounded figure and the bound: "temporaries: 8.02 MiB of 9.38 MiB allowed"."""
        what = "temporaries" if self.of_temp else "the step"
        allowed = f" of {units.size(self.bytes)} allowed" if self.bytes is not None else ""
        return f"{what}: {units.size(self._bounded(figures))}{allowed}"

    def _bounded(self, figures: StepBytes) -> int:
        return figures.temp_bytes if self.of_temp else figures.step_bytes


@dataclass(frozen=True)
class OwnerRow:
    """The values of one line that are alive at the peak.

    Attributes:
      start, end: the start of the first and the end of the last live range, from 0, the program's
        start, to 1.
      note: a remark, e.g. "inside of a loop".
      continues: whether the row above is of the same line.
    """

    value: Named
    start: float
    end: float
    note: str
    count: int = 1
    continues: bool = False

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all of them."""
        return self.value.size_bytes * self.count


@dataclass(frozen=True)
class PeakOwners:
    """The values that own the memory at the peak.

    Attributes:
      peak_bytes, peak_at: the bytes in use at the peak, and its time, from 0 to 1.
      rows: the largest rows, in order; `smaller` are the next ones, in the same order.
      others, others_bytes: the number of values in `smaller`, and their bytes.
      is_before: whether it is the program before the passes.
      totals: the values' totals by layer.
    """

    title: str
    peak_bytes: int
    peak_at: float
    rows: tuple[OwnerRow, ...]
    others: int
    others_bytes: int
    is_before: bool
    totals: tuple[Total, ...]
    smaller: tuple[OwnerRow, ...] = ()


@dataclass(frozen=True)
class MemoryView:
    """A module's memory; unknown parts are None.

    Attributes:
      xla, xla_before: XLA's figures for the compiled program, and for the original.
      before, after: the profiles by hloom's memory model; `after` only where the passes changed
        something.
      live_ranges: the live ranges in XLA's schedule, from the dump.
      live_ranges_before: the live ranges of the original program, where an attempt compiled it.
      owners: tables of the peak's owners, the most informative first.
      xla_tips: the values that live in each stretch of XLA's schedule.
    """

    xla: StepBytes | None
    xla_before: StepBytes | None
    bound: Bound | None
    live_ranges: LiveRanges | None = None
    before: MemoryProfile | None = None
    after: MemoryProfile | None = None
    owners: tuple[PeakOwners, ...] = ()
    xla_tips: tuple[Tip, ...] = ()
    live_ranges_before: LiveRanges | None = None

    @property
    def ends(self) -> tuple[int, int] | None:
        """Returns the bytes before and after, counted in the same way; None unless both are
        known."""
        if self.xla is not None and self.xla_before is not None:
            return self.xla_before.step_bytes, self.xla.step_bytes
        if self.before is not None and self.after is not None:
            return self.before.step_bytes, self.after.step_bytes
        return None

    @property
    def arguments(self) -> tuple[Total, ...]:
        """Returns the totals of the program's arguments by group, on one device; empty where
        unknown."""
        return () if self.before is None else by_argument(self.before.arguments)

    @property
    def bars(self) -> tuple[tuple[str, str, StepBytes | None], ...]:
        """Returns the bars to show side by side: "before" or "after", the source of the figures,
        and the figures.

        XLA's own come first; None where XLA did not compile the original program.
        """
        bars: list[tuple[str, str, StepBytes | None]] = []
        if self.xla is not None:
            if self.xla_before is not None or self.after is not None:
                bars.append(("before", "XLA", self.xla_before))
            bars.append(("after" if self.after or not self.before else "compiled", "XLA", self.xla))
        modelled = (("before", self.before), ("after", self.after))
        bars += [(when, "hloom's model", _figures(c)) for when, c in modelled if c is not None]
        return tuple(bars)


def _figures(curve: MemoryProfile) -> StepBytes:
    output_bytes = max(curve.output_bytes - curve.alias_bytes, 0)
    return StepBytes(curve.argument_bytes, output_bytes, curve.temp_bytes)


def memory_of(dump: ModuleDump) -> MemoryView:
    """XLA's figures and the budget."""
    figures = _xla_figures(dump.memory)
    before = None if figures is None else _unmodified(dump, figures)
    return MemoryView(figures, before, _bound(dump))


def _xla_figures(memory: Mapping[str, Any] | None) -> StepBytes | None:
    try:
        if memory is None:
            return None
        output_bytes = read(Whole, memory["output_bytes"]) - read(Whole, memory["alias_bytes"])
        arguments, temp = read(Whole, memory["argument_bytes"]), read(Whole, memory["temp_bytes"])
        return StepBytes(arguments, max(output_bytes, 0), temp)
    except (KeyError, TypeError, ValueError):
        return None


def _unmodified(dump: ModuleDump, figures: StepBytes) -> StepBytes | None:
    """Returns XLA's figures of the original program, where an attempt compiled it.

    `figures` are those of the compiled program: no pass changes arguments and results.
    """
    compiled = entries(dump.manifest, "compile")
    if compiled.get("before_is_measured") is not True:
        return None
    temp_bytes = _known(compiled.get("temp_bytes_before"))
    return None if temp_bytes is None else replace(figures, temp_bytes=temp_bytes)


def _known(value: object) -> int | None:
    """Returns a size; None where a damaged file has something else."""
    try:
        return read(Whole | None, value)
    except ValueError:
        return None


def _bound(dump: ModuleDump) -> Bound | None:
    try:
        passes = Pipeline.parse(dump.spec).passes
    except SpecError:
        return None
    budget = next(filter(None, (getattr(each, "budget", None) for each in passes)), None)
    if not isinstance(budget, Budget) or budget.least:
        return None
    if budget.percent is not None:
        temp_bytes = next((_known(each.get("temp_bytes")) for each in dump.attempts), None)
        limit = None if temp_bytes is None else int(temp_bytes * budget.percent / 100)
        text = f"{budget.percent:g} % of its temporaries"
        return Bound(text, limit, of_temp=True, tolerance=budget.tolerance)
    if budget.size_bytes is not None:
        return Bound(units.size(budget.size_bytes), budget.size_bytes, of_temp=False)
    usable_bytes = _known(entries(dump.manifest, "target").get("usable_bytes"))
    return Bound("what fits the device", usable_bytes, of_temp=False)


def xla_owners(ranges: LiveRanges, sources: Sources) -> PeakOwners:
    """The owners of the peak by XLA's assignment of buffers.

    Raises LookupError where a value that is in use then is not listed.
    """
    last = max(ranges.instructions - 1, 1)
    rows = [
        OwnerRow(
            sources.described(value.described, value.copy_of),
            value.start / last,
            value.end / last,
            value.name if value.operation else "",
        )
        for value in (ranges.values[index] for index in ranges.at_peak)
        # The peak is of temporaries; arguments and results are in memory all the time.
        if value.is_temporary
    ]
    title = "XLA's temporaries at their peak, in what runs"
    return _owners(title, rows, ranges.peak_bytes, ranges.peak_at / last)


def curve_of_text(text: str, platform: str = "cpu") -> MemoryProfile:
    """Returns the memory of a module over its kernels by hloom's model, given the module's text.

    The model imitates the compiler for this platform, by JAX's name. Raises ValueError where the
    text is no module, and PassError where it cannot be prepared.
    """
    with make_context(), ir.Location.unknown():
        target = Target(platform, platform)
        return memory_profile(prepared_module(text, target), rules=memory_rules(target))


def prepared_module(text: str, target: Target) -> ir.Module:
    """Parses a module into the form that the planner reads, in the current context.

    Raises ValueError where the text is no module, and PassError where it cannot be prepared.
    """
    try:
        module = ir.Module.parse(text)
    except ir.MLIRError as error:
        raise ValueError(f"not a module of StableHLO: {error}") from error
    # The passes that memory-saving passes require; in a later state they have run already.
    pipeline = Pipeline.parse(registry.DEFAULT, source="the report")
    pipeline.run(module, target=target, stop=len(pipeline.steps()) - 1)
    return module


def model_owners(
    title: str, curve: MemoryProfile, sources: Sources, *, is_before: bool = False
) -> PeakOwners:
    """Returns the owners of the peak of a program by hloom's model."""
    last = max(len(curve.points) - 1, 1)
    rows = [
        OwnerRow(
            Named(
                each.name,
                sources.place(each.source),
                units.short_type(each.type),
                each.bytes,
                stacked=each.stacked,
            ),
            start=each.start / last,
            end=each.end / last,
            note="inside of a loop" if each.in_loop else "",
        )
        for each in curve.owners
    ]
    peak_bytes = curve.points[curve.peak_at].bytes if curve.points else 0
    return _owners(title, rows, peak_bytes, curve.peak_at / last, is_before=is_before)


def _owners(
    title: str, values: list[OwnerRow], peak_bytes: int, peak_at: float, *, is_before: bool = False
) -> PeakOwners:
    # One row for the values of one line and type: each layer of a model has such a value.
    together: dict[tuple[object, ...], OwnerRow] = {}
    for each in values:
        value = each.value
        same = (value.called, value.place, value.type, value.size_bytes)
        if (first := together.get(same)) is not None:
            start, end = min(first.start, each.start), max(first.end, each.end)
            each = replace(first, count=first.count + 1, start=start, end=end)
        together[same] = each
    rows = sorted(together.values(), key=lambda row: -row.size_bytes)
    rows, others = rows[:_MOST_OWNERS], rows[_MOST_OWNERS:]
    return PeakOwners(
        title=title,
        peak_bytes=peak_bytes or sum(row.size_bytes for row in rows) or 1,
        peak_at=peak_at,
        rows=tuple(
            replace(row, continues=continues)
            for row, continues in by_line(rows, lambda row: row.value.place.line)
        ),
        others=sum(row.count for row in others),
        others_bytes=sum(row.size_bytes for row in others),
        is_before=is_before,
        smaller=tuple(others),
        totals=by_layer((each.value, each.size_bytes) for each in values),
    )
