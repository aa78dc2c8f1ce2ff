"""Builds the tables that `hloom replay` prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hloom.passes.framework.tables import Kind
from hloom.passes.framework.text import pluralize, seconds, size
from hloom.show import units
from hloom_tools.document.content import Note, Section, TableView, Value, table_of
from hloom_tools.replay.comparison import Comparison, ValueComparison
from hloom_tools.replay.program import Runnable

_MOST_ROWS = 20
"""Values that a table shows; the others are only counted."""


@dataclass(frozen=True)
class Run:
    """The program under one pipeline: a title, e.g. "remat", and the seconds of each timed run."""

    title: str
    runnable: Runnable
    times_s: Sequence[float] = ()

    @property
    def middle_s(self) -> tuple[float, float]:
        """Returns the ends of the times without the fastest and the slowest tenth."""
        ordered, tenth = sorted(self.times_s), len(self.times_s) // 10
        return ordered[tenth], ordered[-1 - tenth]


@dataclass(frozen=True)
class Verdict:
    """The comparison of two runs' results, with the runs' titles."""

    got: str
    wanted: str
    comparison: Comparison


def runs(all_runs: Sequence[Run]) -> Section:
    """Returns the memory and times of each run, side by side.

    Times are measured: a run has a change only where the spreads do not overlap, and that
    of a compile, which is measured once, is not.
    """
    counts = sorted({len(run.times_s) for run in all_runs})
    medians = [statistics.median(run.times_s) if run.times_s else None for run in all_runs]
    runnables = [run.runnable for run in all_runs]
    has_change = len(all_runs) == 2
    rows: list[Sequence[Value]] = []
    is_clear = all(medians) and _are_apart(all_runs[0], all_runs[-1])
    for name, figures, shown_as, is_compared in (
        ("step memory", [each.step_bytes for each in runnables], size, True),
        ("of it temp", [each.memory.temp_bytes for each in runnables], size, True),
        ("passes", [each.pass_s or None for each in runnables], seconds, False),
        ("XLA compile", [each.record.compile_s for each in runnables], seconds, False),
        (f"run, median of {' and '.join(map(str, counts))}", medians, seconds, is_clear),
    ):
        if any(figures):
            shown = ["" if figure is None else shown_as(figure) for figure in figures]
            before, after = figures[0], figures[-1]
            changed = units.change(before, after) if is_compared and before and after else ""
            rows.append((name, *shown, *[changed][:has_change]))
    if any(medians):
        spreads = [units.span(*run.middle_s) if run.times_s else "" for run in all_runs]
        rows.append(("most of them", *spreads, *["" if is_clear else "they overlap"][:has_change]))
    columns = [("", Kind.TEXT), *((run.title, Kind.COUNT) for run in all_runs)]
    columns += [("change", Kind.COUNT)] * has_change
    title = "Memory and time"
    return Section(title, tables=(table_of(title, columns, rows, most=0),))


def _are_apart(one: Run, other: Run) -> bool:
    (least, most), (others_least, others_most) = one.middle_s, other.middle_s
    return most < others_least or others_most < least


def opinion(found: Verdict) -> Section:
    """Returns whether two runs are equal, and what differs, the largest error first."""
    comparison, values = found.comparison, found.comparison.values
    unequal = _worst_first([value for value in values if not value.bits_equal])
    pair = f"{found.got} and {found.wanted}"
    first = comparison.first_differing
    if first is None:
        same = sum(value.bits_equal for value in values)
        nan_count = sum(value.nan_both for value in values)
        none = f" {pluralize(nan_count, 'element')} NaN in both." if nan_count else ""
        text = (
            f"{pair} agree in {pluralize(len(values), 'result')} within tolerance, {same} of "
            f"them bit for bit.{none}"
        )
        worst = (
            Note(
                f"The largest error is in {one.name} {one.type}: {one.max_absolute:.3g} absolute, "
                f"{one.max_relative:.3g} relative of {one.tolerance:.2g} allowed."
            )
            for one in unequal[:1]
        )
        return Section("", notes=(Note(text, "EQUAL", "ok"), *worst))
    count = sum(not value.equal for value in values)
    text = (
        f"{pair} differ in {count} of {pluralize(len(values), 'result')}. The first is "
        f"{_described(first)}"
    )
    notes = [Note(text, "DIFFERENT", "error")]
    if near := len(unequal) - count:
        told = f"{pluralize(near, 'other')} agree within tolerance, not bit for bit."
        notes.insert(0, Note(told))
    table = _differences(found, [value for value in unequal if not value.equal])
    return Section("", tables=(table,), notes=tuple(notes))


def _described(value: ValueComparison) -> str:
    """Describes the largest difference of a value, and its place, as the rest of a sentence."""
    if value.mismatch is not None:
        return f"{value.name}: its {value.mismatch}."
    place = f"[{', '.join(map(str, value.worst or ()))}]"
    return (
        f"{value.name} ({value.type}): at {place} it is {value.got}, wanted "
        f"{value.wanted}; {pluralize(value.differing, 'element')} beyond the tolerance of "
        f"{value.tolerance:.2g}, largest error {value.max_absolute:.3g} absolute, "
        f"{value.max_relative:.3g} relative."
    )


def _differences(found: Verdict, ranked: Sequence[ValueComparison]) -> TableView:
    title = f"Results of {found.got} that are not those of {found.wanted}, the worst first"
    heads = ["max abs", "max rel", "tolerance", "beyond"]
    heads += ["NaN in one"] * any(value.nan_one for value in ranked)
    rows: list[Sequence[Value]] = []
    for value in ranked:
        numbers: list[Value] = [
            f"{value.max_absolute:.3g}",
            f"{value.max_relative:.3g}",
            f"{value.tolerance:.2g}",
            str(value.differing),
            str(value.nan_one or ""),
        ]
        cells = [value.mismatch, *[None] * 4] if value.mismatch else numbers
        rows.append((f"{value.name} {value.type}", *cells[: len(heads)]))
    columns = [("result", Kind.TEXT), *((head, Kind.COUNT) for head in heads)]
    return table_of(title, columns, rows, most=_MOST_ROWS)


def _worst_first(values: Sequence[ValueComparison]) -> list[ValueComparison]:
    """Sorts differing values first, then by the largest error relative to the tolerance."""

    def rank(value: ValueComparison) -> tuple[bool, bool, float]:
        error = math.inf if value.nan_one else value.max_relative
        return value.equal, value.mismatch is None, -error / (value.tolerance or 1)

    return sorted(values, key=rank)
