"""Sections of a report: what any pass's plan states is shown, whoever wrote the pass.

Totals of the peak by layer, and of arguments by what they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.dumps.report_dumps import HOSTILE, OLD_PLAN, PLAN

from hloom.dumps.read.module import PlanFile
from hloom.passes.ir.names import SourceLine
from hloom_tools.document.content import Document, Section, plan_section
from hloom_tools.document.sources import Named, SourcePlace, Sources
from hloom_tools.document.terminal import as_text
from hloom_tools.report.folder import PassRow
from hloom_tools.report.sections import (
    attempts_section,
    graphs_section,
    plan_sections,
    without_tables,
)
from hloom_tools.report.totals import MOST_ROWS, Total, by_argument, by_layer

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
    assert [cell.entries for cell in found.tables[0].rows[0].cells][-1] == ("used",)
    unknown = graphs_section({"coverage": None, "options": {}, "notes": []}, NO_SOURCES)
    assert "not known" in shown(unknown)


MIB = 2**20


def named(*scopes: str) -> Named:
    return Named("/".join(("jit(step)", *scopes, "add")), SourcePlace(""))


def test_layers_are_divided_until_the_table_is_full() -> None:
    values = [(named(f"jvp(GPT)/Block_{n}/Attention_0"), 4 * MIB) for n in range(4)]
    values += [
        (named(f"transpose(jvp(GPT))/Block_{n}/MLP_0/Dense_{m}"), MIB)
        for n in range(4)
        for m in (0, 1)
    ]
    values += [(named("jvp(GPT)/Block_0"), MIB), (named("jvp(GPT)/head"), 2 * MIB)]
    assert by_layer(values) == (
        Total("GPT/Block/Attention", 16 * MIB, 4),
        Total("GPT/Block/MLP/Dense", 8 * MIB, 8),
        Total("GPT/head", 2 * MIB, 1),
        Total("GPT/Block, outside of these", MIB, 1),
    )


def test_a_table_has_no_more_than_its_rows() -> None:
    values = [(named("net", f"part{chr(97 + n)}"), (30 - n) * MIB) for n in range(20)]
    assert by_layer(values) == (Total("net", sum(size for _, size in values), 20),)
    roots = [(named(f"part{chr(97 + n)}"), (30 - n) * MIB) for n in range(20)]
    rows = by_layer(roots)
    assert len(rows) == MOST_ROWS + 1
    assert rows[-1].name == "12 others"
    assert sum(row.size_bytes for row in rows) == sum(size for _, size in roots)
    assert sum(row.count for row in rows) == 20


def test_what_is_very_small_is_in_the_last_row() -> None:
    values = [(named("a"), 1000), (named("b"), 5), (named("c"), 4)]
    assert by_layer(values) == (Total("a", 1000, 1), Total("2 others", 9, 2))


def test_without_scopes_it_is_functions_lines_and_libraries() -> None:
    sources = Sources({})

    def at(line: int, library: str = "") -> Named:
        found = library and f"/v/site-packages/{library}.py:7"
        source = SourceLine(f"/home/train.py:{line}", found, "main.<locals>.Block.__call__")
        return Named("jit(step)/jvp()/while/body/add", sources.place(source))

    values = [
        (at(27, "flax/attention"), 50),
        (at(28, "flax/linear"), 30),
        (at(28), 15),
        (Named("", sources.place(SourceLine("/home/train.py:5", "", "<module>"))), 10),
        (Named("", sources.place(SourceLine())), 5),
    ]
    assert [(row.name, row.size_bytes) for row in by_layer(values)] == [
        ("Block.__call__, train.py:27, in flax/attention.py", 50),
        ("Block.__call__, train.py:28, in flax/linear.py", 30),
        ("Block.__call__, train.py:28, outside of these", 15),
        ("train.py:5", 10),
        ("no source line", 5),
    ]


def test_arguments_are_told_by_their_paths() -> None:
    def arguments() -> Iterator[tuple[str, int]]:
        for part in ("params", "opt_state[0].mu", "opt_state[0].nu"):
            for n in range(3):
                yield f"state.{part}['layer_{n}']['kernel']", 4 * MIB
        yield "state.step", MIB
        yield "batch['tokens']", 2 * MIB
        yield "", MIB

    assert by_argument(list(arguments())) == (
        Total("state.opt_state[0].mu", 12 * MIB, 3),
        Total("state.opt_state[0].nu", 12 * MIB, 3),
        Total("state.params", 12 * MIB, 3),
        Total("batch", 2 * MIB, 1),
        Total("state.step", MIB, 1),
        Total("without a name", MIB, 1),
    )
    assert by_argument([]) == ()
