"""The tables that `hloom replay` prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hloom.passes.framework.text import pluralize
from hloom.tools.replay.comparison import Comparison, ValueComparison
from hloom.tools.replay.run import Runnable
from hloom.tools.report.units import change, seconds, size

MOST_ROWS = 20
"""Values that a table shows; the others are only counted."""

_LEAST_NAME_COLUMNS = 24
"""Of a terminal, for a result's path in the pytree: fewer break it letter by letter."""


@dataclass(frozen=True)
class Run:
    """One way that the program was run.

    Attributes:
      title: what it is called, e.g. "remat".
      runnable: what ran.
      times_s: seconds of each run; empty where none was timed.
    """

    title: str
    runnable: Runnable
    times_s: Sequence[float] = ()

    @property
    def median_s(self) -> float | None:
        """The middle one of the times; None where there are none."""
        return statistics.median(self.times_s) if self.times_s else None


@dataclass(frozen=True)
class Verdict:
    """The results of one way of running the program against another's.

    Attributes:
      got, wanted: the titles of the two.
      comparison: value by value.
    """

    got: str
    wanted: str
    comparison: Comparison


def runs(all_runs: Sequence[Run]) -> RenderableType:
    """Memory and times of each run, side by side."""
    table = Table(title="Memory and time", title_justify="left")
    table.add_column("")
    for run in all_runs:
        table.add_column(run.title, justify="right", overflow="fold")
    if len(all_runs) == 2:
        table.add_column("change", justify="right")
    rows: list[tuple[str, list[float | None], bool]] = [
        ("step memory", [run.runnable.step_bytes for run in all_runs], True),
        ("of it temp", [run.runnable.memory.temp_bytes for run in all_runs], True),
        ("passes", [run.runnable.pass_s or None for run in all_runs], False),
        ("XLA compile", [run.runnable.compile_s for run in all_runs], False),
        (_run_title(all_runs), [run.median_s for run in all_runs], False),
    ]
    for name, figures, are_bytes in rows:
        if any(figures):
            shown = ["" if f is None else size(f) if are_bytes else seconds(f) for f in figures]
            before, after = figures[0], figures[-1]
            changed = change(before, after) if before and after else ""
            table.add_row(name, *shown, *([changed] if len(figures) == 2 else []))
    return table


def opinion(found: Verdict) -> RenderableType:
    """Whether two runs are equal, and what differs, the worst first."""
    comparison = found.comparison
    unequal = [value for value in comparison.values if not value.bits_equal]
    if comparison.equal:
        worst = _worst_first(unequal)[:1]
        return Group(
            verdict(found), *(Text(f"The largest error is in {described(one)}") for one in worst)
        )
    return Group(_values(found, unequal), verdict(found))


def verdict(found: Verdict) -> Text:
    """One sentence: whether the two agree, and where they part first."""
    values = found.comparison.values
    pair = f"{found.got} and {found.wanted}"
    first = found.comparison.first_differing
    if first is None:
        same = sum(value.bits_equal for value in values)
        return Text.assemble(
            ("EQUAL", "bold green"),
            f": {pair} agree in {pluralize(len(values), 'result')} within tolerance, {same} of "
            f"them bit for bit.{_numberless(values)}",
        )
    count = sum(not value.equal for value in values)
    return Text.assemble(
        ("DIFFERENT", "bold red"),
        f": {pair} part in {count} of {pluralize(len(values), 'result')}. The first is "
        f"{described(first)}",
    )


def described(value: ValueComparison) -> str:
    """Where a value differs most and how, a sentence without its beginning."""
    if value.mismatch is not None:
        return f"{value.name}: its {value.mismatch}."
    place = f"[{', '.join(map(str, value.worst or ()))}]"
    return (
        f"{value.name} ({_type(value)}): at {place} it is {value.got}, wanted "
        f"{value.wanted}; {pluralize(value.differing, 'element')} beyond the tolerance of "
        f"{value.tolerance:.2g}, largest error {value.max_absolute:.3g} absolute, "
        f"{value.max_relative:.3g} relative."
    )


def _values(found: Verdict, unequal: Sequence[ValueComparison]) -> Table:
    table = Table(
        title=f"Results of {found.got} that are not bit for bit those of {found.wanted}",
        title_justify="left",
    )
    table.add_column("result", overflow="fold", min_width=_LEAST_NAME_COLUMNS)
    table.add_column("type", overflow="fold")
    for name in ("max abs", "max rel", "tolerance", "beyond"):
        table.add_column(name, justify="right", no_wrap=True)
    if any(map(_one_sided, unequal)):
        table.add_column("NaN in one", justify="right", no_wrap=True)
    ranked = _worst_first(unequal)
    for value in ranked[:MOST_ROWS]:
        cells = _row(value)[: len(table.columns)]
        table.add_row(*cells, style="" if value.equal else "bold red")
    if len(ranked) > MOST_ROWS:
        table.add_row(f"… and {len(ranked) - MOST_ROWS} more")
    return table


def _worst_first(values: Sequence[ValueComparison]) -> list[ValueComparison]:
    """Those that differ, then by how much of their tolerance the largest error takes."""

    def rank(value: ValueComparison) -> tuple[bool, bool, float]:
        error = math.inf if _one_sided(value) else value.max_relative
        return value.equal, value.mismatch is None, -error / (value.tolerance or 1)

    return sorted(values, key=rank)


def _row(value: ValueComparison) -> tuple[str, ...]:
    type_ = _type(value)
    if value.mismatch is not None:
        return value.name, type_, value.mismatch
    return (
        value.name,
        type_,
        f"{value.max_absolute:.3g}",
        f"{value.max_relative:.3g}",
        f"{value.tolerance:.2g}",
        str(value.differing),
        str(_one_sided(value) or ""),
    )


def _one_sided(value: ValueComparison) -> int:
    return value.nan_got + value.nan_wanted


def _type(value: ValueComparison) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _numberless(values: Sequence[ValueComparison]) -> str:
    count = sum(value.nan_both for value in values)
    return f" {pluralize(count, 'element')} of both: no number." if count else ""


def _run_title(all_runs: Sequence[Run]) -> str:
    counts = sorted({len(run.times_s) for run in all_runs})
    return f"run, median of {' and '.join(map(str, counts))}"
