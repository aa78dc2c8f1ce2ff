"""Sections of a report: what any pass's plan states is shown, whoever wrote the pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.dumps.report_dumps import HOSTILE, OLD_PLAN, PLAN

from hloom.dumps.read.module import PlanFile
from hloom_tools.document.content import Document, Section, plan_section
from hloom_tools.document.sources import Named, Sources
from hloom_tools.document.terminal import as_text
from hloom_tools.report.folder import PassRow
from hloom_tools.report.sections import (
    attempts_section,
    graphs_section,
    plan_sections,
    without_tables,
)

pytestmark = pytest.mark.once

NO_SOURCES = Sources({})


def shown(what: Section) -> str:
    return as_text(Document("", (what,)), 160)


@pytest.fixture
def what() -> Section:
    return plan_section(json.loads(json.dumps(PLAN)), "my-pass{by=2}", "3 moved", NO_SOURCES)


def test_cells_are_rendered_by_their_kind(what: Section) -> None:
    order, moved, left = what.tables
    assert [row.depth for row in order.rows] == [0, 1, 1]
    assert [cell.entries for cell in order.rows[1].cells[:3]] == [
        ("entry barrier",),
        ("60.0 s",),
        ("75 %",),
    ]
    assert [cell.entries for cell in order.rows[0].cells[1:3]] == [(), ()]
    value = moved.rows[10].cells[1].entries[0]
    assert isinstance(value, Named)
    assert (value.size_bytes, value.times, value.place.line) == (1024, 3, "/home/user/model.py:10")
    assert len(moved.rows[10].cells[2].entries) == 2
    assert moved.rows[10].cells[3].entries == ("2.00 GFLOP",)
    assert (moved.more, left.title) == (2, "Left as it is")
    assert [str(fact) for fact in what.facts][:2] == ["values moved: 3", "bytes moved: 5.00 MiB"]
    assert what.name == "my-pass"


def test_a_terminal_gets_the_first_rows(what: Section) -> None:
    text = shown(what)
    for expected in (
        "my-pass{by=2}: 3 moved",
        "values moved: 3, bytes moved: 5.00 MiB",
        "One after the other.",
        "  entry barrier",
        "3 x dot bf16[8,16]",
        "and 34 more",
        "axis 1 takes 3 loops",
        HOSTILE,
    ):
        assert expected in text


def test_lines_of_the_program_stand_with_values() -> None:
    kept = {"/home/user/model.py": {"lines": {"12": "y = write(x)"}}}
    found = plan_section(PLAN, "my-pass", "", Sources({"sources": kept}))
    value = found.tables[0].rows[1].cells[3].entries[0]
    assert isinstance(value, Named)
    assert value.place.code == "y = write(x)"


def test_a_section_for_each_plan_with_tables() -> None:
    plans = [
        PlanFile("inline", 1, {"facts": [], "tables": []}),
        PlanFile("old-pass", 2, OLD_PLAN),
        PlanFile("my-pass", 3, PLAN),
        PlanFile("idle", 4, OLD_PLAN),
        PlanFile("not-there", 5, {"does_nothing": "does nothing on a CPU"}),
    ]
    runs = [PassRow(plan.name, "what it did", plan.name == "idle", 0, 0, 0) for plan in plans]
    [found] = plan_sections(plans, runs, NO_SOURCES)
    assert (found.title, found.summary, found.anchor) == ("my-pass", "what it did", "plan-3")
    assert without_tables(plans, runs) == ["old-pass"]
    # Without its manifest nobody knows which of them did something.
    assert without_tables(plans, ()) == ["old-pass", "idle"]


def damaged(path: list[Any], value: object) -> Any:
    plan = json.loads(json.dumps(PLAN))
    place = plan
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return plan


@pytest.mark.parametrize(
    "path",
    [
        ["facts", 0, "value"],
        ["facts", 0, "kind"],
        ["facts", 0],
        ["tables", 0, "title"],
        ["tables", 0, "columns"],
        ["tables", 0, "columns", 0, 1],
        ["tables", 0, "rows", 0],
        ["tables", 0, "rows", 1, 1],
        ["tables", 0, "rows", 1, 3, "source", "line"],
        ["tables", 0, "depths"],
        ["tables", 1, "more"],
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [[1], {"a": {}}, True, -(2**70)], ids=str)
def test_damage_is_an_error_of_reading(path: list[Any], value: object) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        plan_section(damaged(path, value), "my-pass", "", NO_SOURCES)


def test_a_compile_without_attempts_or_figures() -> None:
    assert attempts_section([], None) is None
    found = attempts_section([{"used": True}], None)
    assert found is not None
    assert [cell.entries for cell in found.tables[0].rows[0].cells][-1] == ("used",)
    unknown = graphs_section({"coverage": None, "options": {}, "notes": []}, NO_SOURCES)
    assert "not known" in shown(unknown)
