"""Builds sections of facts and tables: the passes' plans, the attempts, the graphs.

The functions that read a dump raise KeyError, TypeError or ValueError where it is damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hloom.dumps.read.dump import PlanFile
from hloom.passes.framework.structure import Whole, read
from hloom.passes.framework.tables import Cell, Described, Fact, Kind, Table
from hloom.passes.ir.names import SourceLine
from hloom.show import units
from hloom.xla.coverage import Coverage
from hloom_tools.document.content import (
    NO_SOURCES,
    Note,
    Section,
    TableView,
    plan_section,
    table_view,
)
from hloom_tools.document.sources import Json, Sources
from hloom_tools.report.folder import PassRow
from hloom_tools.report.memory import Bound


def plan_sections(
    plans: Sequence[PlanFile], runs: Sequence[PassRow], sources: Sources
) -> tuple[Section, ...]:
    """Returns a section for each plan that has tables, those of passes that others need
    last."""
    return tuple(
        section
        for plan, run in sorted(_with_runs(plans, runs), key=_is_needed_by_others)
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


def _is_needed_by_others(planned: tuple[PlanFile, PassRow | None]) -> bool:
    return planned[1] is not None and not planned[1].requested


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
    return Section("Attempts", "attempts", tables=(table_view(table, NO_SOURCES),))


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
    """Returns the section on the part of a module that runs in CUDA graphs, by XLA where known."""
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
    tables = () if coverage is None else left_out_tables(coverage, sources)
    notes = tuple(Note(str(note)) for note in found["notes"])
    return Section("CUDA graphs", "graphs", summary, tuple(facts), tables, notes)


def left_out_tables(coverage: Coverage, sources: Sources = NO_SOURCES) -> tuple[TableView, ...]:
    """Returns why thunks are in no graph, and each of them with its line; none without any."""
    reasons = Counter(
        "a loop around one of these" if each.reason.startswith("in it: ") else each.reason
        for each in coverage.left_out
    )
    left_out = Counter(
        (
            each.kind.removeprefix("k"),
            Described(each.operation, SourceLine(each.line, each.library)),
            each.instruction,
            each.reason,
        )
        for each in coverage.left_out
    )
    tables = (
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
    return tuple(table_view(table, sources) for table in tables if table.rows)


_SENT_COLUMNS = {"kind": Kind.TEXT, "predicted": Kind.BYTES, "by XLA": Kind.BYTES}


def sent_section(found: Json, sources: Sources) -> Section:
    """Returns the section on the bytes that each device sends, and on its whole values."""
    predicted = read(dict[str, Whole], found["predicted_bytes"])
    by_xla = read(dict[str, Whole] | None, found["xla_bytes"]) or {}
    kinds = sorted({*predicted, *by_xla})
    rows = tuple((kind, predicted.get(kind), by_xla.get(kind)) for kind in kinds)
    by_kind = Table("Sent by each device in a step, by kind", _SENT_COLUMNS, rows)
    section = plan_section(
        found["overview"], "Between devices", str(found["summary"]), sources, anchor="sent"
    )
    views = (*section.tables, table_view(by_kind, sources))
    return replace(section, tables=tuple(each for each in views if each.rows))
