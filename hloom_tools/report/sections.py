"""Builds sections of facts and tables: the passes' plans, the attempts, the graphs.

The functions that read a dump raise KeyError, TypeError or ValueError where it is damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from hloom.dumps.read.dump import PlanFile
from hloom.passes.framework.structure import Whole, read
from hloom.passes.framework.tables import Cell, Described, Fact, Kind, Statement, Table, shown
from hloom.passes.ir.names import SourceLine
from hloom.show import units
from hloom.xla.coverage import Coverage
from hloom_tools.report.folder import PassRow
from hloom_tools.report.memory import Bound
from hloom_tools.report.sources import Json, Named, Sources, by_line

_DEEPEST = 40
"""The deepest indentation of a row."""

Entry: TypeAlias = str | Named
"""A line of a cell."""


@dataclass(frozen=True)
class CellView:
    """A cell with its column's heading and kind."""

    heading: str
    kind: Kind
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class RowView:
    """The cells of a row, the first one indented by `depth`.

    `continues` is set where its value is of the same line as that of the row above.
    """

    cells: tuple[CellView, ...]
    depth: int = 0
    continues: bool = False

    @property
    def line(self) -> str:
        """Returns the line of the row's value; empty where it has none or several."""
        entries = next((cell.entries for cell in self.cells if cell.kind is Kind.VALUE), ())
        one = entries[0] if len(entries) == 1 else ""
        return one.place.line if isinstance(one, Named) else ""


@dataclass(frozen=True)
class TableView:
    """A table with the lines of the user's program; `more` counts rows that are not shown."""

    title: str
    text: str
    columns: Mapping[str, Kind]
    rows: tuple[RowView, ...]
    more: int

    @property
    def is_nested(self) -> bool:
        return any(row.depth for row in self.rows)


@dataclass(frozen=True)
class Section:
    """Facts and tables with a title.

    Attributes:
      anchor: its anchor in a page.
      title: the title, e.g. the pass as spelled in a spec.
      summary: a line of text; empty for none.
      empty: whether the pass did nothing.
    """

    anchor: str
    title: str
    summary: str
    facts: tuple[Fact, ...]
    tables: tuple[TableView, ...]
    empty: bool = False

    @property
    def name(self) -> str:
        """Returns the title without options."""
        return self.title.partition("{")[0]


def plan_sections(
    plans: Sequence[PlanFile], runs: Sequence[PassRow], sources: Sources
) -> tuple[Section, ...]:
    """Returns a section for each plan that has tables."""
    return tuple(
        section
        for plan, run in _with_runs(plans, runs)
        if (
            section := plan_section(
                plan.json,
                plan.name if run is None else run.spec,
                "" if run is None else run.summary,
                sources,
                anchor=f"plan-{plan.index}",
            )
        ).tables
    )


def without_tables(plans: Sequence[PlanFile], runs: Sequence[PassRow]) -> list[str]:
    """Returns the passes that changed something but whose plans have no tables: those of older
    versions."""
    return [
        plan.name
        for plan, run in _with_runs(plans, runs)
        if not {"tables", "does_nothing"} & set(plan.json) and not (run is not None and run.empty)
    ]


def _with_runs(
    plans: Sequence[PlanFile], runs: Sequence[PassRow]
) -> Iterator[tuple[PlanFile, PassRow | None]]:
    for plan in plans:
        yield plan, runs[plan.index - 1] if 0 < plan.index <= len(runs) else None


def plan_section(
    plan: Mapping[str, Any],
    spec: str,
    summary: str,
    sources: Sources,
    *,
    empty: bool = False,
    anchor: str = "",
) -> Section:
    """The section of a plan, of its `to_json`."""
    stated = Statement.of(plan)
    tables = tuple(_table(each, sources) for each in stated.tables)
    return Section(anchor, spec, summary, stated.facts, tables, empty)


def ran_section(found: Json, sources: Sources) -> Section:
    """Returns the section of a run of a step in several programs, compared with its plan."""
    return plan_section(found, "What ran", "", sources, anchor="ran")


HOW_PREDICTED = (
    "Each plan was compiled. The first prediction is hloom's model alone; the later ones are "
    "corrected by XLA's figures of the attempts before them."
)
"""The fact that distinguishes the two kinds of predictions of a budget."""

_ATTEMPT_COLUMNS = {
    "attempt": Kind.COUNT,
    "predicted": Kind.BYTES,
    "XLA's figure": Kind.BYTES,
    "off by": Kind.TEXT,
    "added work": Kind.FLOPS,
    "what became of it": Kind.TEXT,
}


def attempts_section(attempts: Sequence[Json], bound: Bound | None) -> Section | None:
    """Returns the section of a measured pass's attempts; None where it had just one plan."""
    if not attempts:
        return None
    limit = None if bound is None or bound.of_temp else bound.bytes
    rows = tuple(_attempt(number, each, limit) for number, each in enumerate(attempts, start=1))
    table = Table("Attempts", _ATTEMPT_COLUMNS, rows, HOW_PREDICTED)
    return Section("attempts", "Attempts", "", (), (_table(table, Sources({})),))


def _attempt(number: int, attempt: Json, limit_bytes: int | None) -> tuple[Cell, ...]:
    predicted = read(Whole | None, attempt.get("predicted_step_bytes"))
    measured = read(Whole | None, attempt.get("step_bytes"))
    allowed = read(Whole | None, attempt.get("limit_bytes"))
    off_by = f"{(predicted / measured - 1) * 100:+.1f} %" if predicted and measured else None
    status = []
    if measured is not None and allowed is not None:
        status.append(units.refused(measured, allowed))
    elif measured is not None and limit_bytes is not None and measured > limit_bytes:
        status.append("over the budget")
    status += ["used"] * bool(attempt.get("used"))
    added = read(float | None, attempt.get("added_flops")) or 0
    return number, predicted, measured, off_by, added, ", ".join(status)


_LEFT_OUT_COLUMNS = {
    "thunks": Kind.COUNT,
    "kind": Kind.TEXT,
    "operation": Kind.VALUE,
    "instruction": Kind.CODE,
    "why not captured": Kind.TEXT,
}


def graphs_section(found: Json, sources: Sources) -> Section:
    """What of a module runs in CUDA graphs, by XLA's numbers where they are known."""
    coverage = read(Coverage | None, found["coverage"])
    summary, facts = "What of it is captured is not known", list[Fact]()
    if coverage is not None:
        summary = "A thunk is what XLA launches: a kernel, a copy, a collective, a loop"
        facts = [
            Fact("thunks in CUDA graphs", coverage.share, Kind.SHARE),
            Fact("captured", coverage.captured),
            Fact("thunks", coverage.thunks),
            Fact("graphs", coverage.graphs),
        ]
    facts += [Fact(name, str(value), Kind.CODE) for name, value in found["options"].items()]
    entries = () if coverage is None else coverage.left_out
    reasons = Counter(
        "a loop around one of these" if each.reason.startswith("in it: ") else each.reason
        for each in entries
    )
    left_out = Counter(
        (
            each.kind.removeprefix("k"),
            Described(each.operation, SourceLine(each.line, each.library)),
            each.instruction,
            each.reason,
        )
        for each in entries
    )
    notes = tuple((str(note),) for note in found["notes"])
    tables = (
        Table("Notes", {"note": Kind.TEXT}, notes),
        Table(
            "Why the others are left out",
            {"thunks": Kind.COUNT, "reason": Kind.TEXT},
            tuple((times, reason) for reason, times in reasons.most_common()),
        ),
        Table(
            "Each of them, with its line",
            _LEFT_OUT_COLUMNS,
            tuple((times, *row) for row, times in left_out.items()),
        ),
    )
    views = tuple(_table(table, sources) for table in tables if table.rows)
    return Section("graphs", "CUDA graphs", summary, tuple(facts), views)


_SENT_COLUMNS = {"kind": Kind.TEXT, "predicted": Kind.BYTES, "by XLA": Kind.BYTES}


def sent_section(found: Json, sources: Sources) -> Section:
    """What each device of a sharded program sends the others in a step, and what it has whole."""
    predicted = read(dict[str, Whole], found["predicted_bytes"])
    by_xla = read(dict[str, Whole] | None, found["xla_bytes"]) or {}
    kinds = sorted({*predicted, *by_xla})
    rows = tuple((kind, predicted.get(kind), by_xla.get(kind)) for kind in kinds)
    by_kind = Table("Sent by each device in a step, by kind", _SENT_COLUMNS, rows)
    section = plan_section(
        found["overview"], "Between devices", str(found["summary"]), sources, anchor="sent"
    )
    views = (*section.tables, _table(by_kind, sources))
    return replace(section, tables=tuple(each for each in views if each.rows))


def _table(table: Table, sources: Sources) -> TableView:
    depths = table.depths or (0,) * len(table.rows)
    rows = tuple(
        RowView(
            tuple(
                CellView(heading, kind, tuple(_entries(cell, kind, sources)))
                for cell, (heading, kind) in zip(row, table.columns.items(), strict=True)
            ),
            min(depth, _DEEPEST),
        )
        for row, depth in zip(table.rows, depths, strict=True)
    )
    if not any(depths):
        rows = tuple(
            replace(row, continues=continues)
            for row, continues in by_line(rows, lambda row: row.line)
        )
    return TableView(table.title, table.text, table.columns, rows, table.more)


def _entries(cell: Cell, kind: Kind, sources: Sources) -> Iterator[Entry]:
    for each in cell if isinstance(cell, tuple) else () if cell in (None, "") else (cell,):
        yield sources.described(each) if isinstance(each, Described) else shown(each, kind)
