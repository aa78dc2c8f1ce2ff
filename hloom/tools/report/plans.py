"""What the passes decided: the facts and tables that plans state of themselves, of any pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hloom.dumps.read.module import PlanFile
from hloom.passes.framework.tables import Cell, Described, Fact, Kind, Table, shown
from hloom.tools.report.folder import PassRow
from hloom.tools.report.sources import Named, Sources

NO_TABLES = "This plan has no tables: the pass states none, or an older version of hloom wrote it."

Entry: TypeAlias = str | Named


@dataclass(frozen=True)
class CellView:
    """A cell with its column's heading and kind, and a line for each of its entries."""

    heading: str
    kind: Kind
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class RowView:
    """The cells of a row, the first one indented by `depth`."""

    cells: tuple[CellView, ...]
    depth: int = 0


@dataclass(frozen=True)
class TableView:
    """A table with the lines of the user's program; `more` rows are counted only."""

    title: str
    text: str
    columns: Mapping[str, Kind]
    rows: tuple[RowView, ...]
    more: int


@dataclass(frozen=True)
class PlanView:
    """What one step of a pipeline decided.

    Attributes:
      anchor: of the step in a page.
      spec: the pass, as a spec spells it.
      summary: what it did in a line; empty where it is not known.
      empty: it did nothing.
      note: why there are no tables; empty where there are.
    """

    anchor: str
    spec: str
    summary: str
    empty: bool
    facts: tuple[Fact, ...]
    tables: tuple[TableView, ...]
    note: str = ""


def plan_views(
    plans: Sequence[PlanFile], runs: Sequence[PassRow], sources: Sources
) -> tuple[PlanView, ...]:
    """The plans of a module that have something to show.

    Raises KeyError, TypeError or ValueError where a damaged dump has something else.
    """
    return tuple(_shown_plans(plans, runs, sources))


def _shown_plans(
    plans: Sequence[PlanFile], runs: Sequence[PassRow], sources: Sources
) -> Iterator[PlanView]:
    for plan in plans:
        run = runs[plan.index - 1] if 0 < plan.index <= len(runs) else None
        spec, summary = (plan.name, "") if run is None else (run.spec, run.summary)
        is_empty = run is not None and run.empty
        view = plan_view(plan.json, spec, summary, sources, anchor=f"plan-{plan.index}")
        if view.tables or (not is_empty and (view.facts or view.note)):
            yield view


def plan_view(
    plan: Mapping[str, Any],
    spec: str,
    summary: str,
    sources: Sources,
    *,
    empty: bool = False,
    anchor: str = "",
) -> PlanView:
    """A plan's `to_json` for a reader.

    Raises KeyError, TypeError or ValueError where it is not what a plan states.
    """
    facts = tuple(map(Fact.from_json, plan.get("facts", ())))
    tables = tuple(_table(Table.from_json(each), sources) for each in plan.get("tables", ()))
    states_any = "tables" in plan or "does_nothing" in plan
    note = "" if states_any else NO_TABLES
    return PlanView(anchor, spec, summary, empty, facts, tables, note)


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
    return TableView(table.title, table.text, table.columns, rows, table.more)


_DEEPEST = 40
"""How far a row is indented at most."""


def _entries(cell: Cell, kind: Kind, sources: Sources) -> Iterator[Entry]:
    for each in cell if isinstance(cell, tuple) else () if cell is None else (cell,):
        yield sources.described(each) if isinstance(each, Described) else shown(each, kind)
