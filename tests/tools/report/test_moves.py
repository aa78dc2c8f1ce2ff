"""What a report tells of `fit`: each move with its gain and its price."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import hloom
from hloom.dumps.read.dump import open_dump
from hloom.tools.report.command import write_page
from hloom.tools.report.gather import ModuleReport, Report, gather
from hloom.tools.report.moves import MovesView, moves_of, price
from hloom.tools.report.sources import Sources
from hloom.tools.report.text import text

pytestmark = pytest.mark.once

NO_SOURCES = Sources({})

MIB = 2**20


def entry(name: str, before: int | None, after: int | None, **more: Any) -> dict[str, Any]:
    return {
        "pass": name,
        "summary": f"what {name} does",
        "prepares": False,
        "temp_bytes_before": before,
        "temp_bytes_after": after,
        "weighted_seconds": 0.0 if after is None else 1e-3,
        "plan": {},
    } | more


SPLIT: dict[str, Any] = {
    "name": "jit(step)/while",
    "source": "/home/user/model.py:10",
    "at": [5],
    "trips": [5, 7],
    "loops": 2,
    "stacks": 3,
    "stacked_bytes": 12 * MIB,
}

STACK: dict[str, Any] = {
    "id": "stack-0",
    "name": "jit(step)/tanh",
    "source": "/home/user/model.py:11",
    "type": "tensor<12x512x512xf32>",
    "bytes": 12 * MIB,
}


@pytest.fixture(scope="module")
def report(fit_dump: tuple[Path, hloom.CompileRecord]) -> Report:
    return gather(open_dump(fit_dump[0]))


@pytest.fixture
def module(report: Report) -> ModuleReport:
    return report.modules[0]


@pytest.fixture
def view(module: ModuleReport) -> MovesView:
    assert module.moves is not None, module.missing
    return module.moves


def shown(report: Report) -> str:
    printed = io.StringIO()
    Console(width=300, file=printed).print(text(report))
    return printed.getvalue()


def test_moves_stand_with_what_prepares_for_them(view: MovesView) -> None:
    chunk, remat = view.rows
    *prepared, last = chunk.moves
    assert [move.spec for move in prepared] == ["one-hot", "fold-transposes", "cse"]
    assert all(move.prepares for move in prepared)
    assert last.spec.startswith("chunk{")
    assert not last.prepares
    assert [move.spec for move in remat.moves] == ["remat"]


def test_each_move_has_its_gain_and_its_price(view: MovesView, module: ModuleReport) -> None:
    chunk, remat = view.rows
    assert chunk.after_bytes == remat.before_bytes
    assert view.seconds == (chunk.seconds or 0.0) + (remat.seconds or 0.0)
    assert chunk.before_bytes is not None
    assert remat.after_bytes is not None
    assert chunk.before_bytes > remat.after_bytes
    assert view.gain.endswith(remat.gain.partition(" → ")[2])
    # The plan's own parts are told of as if the passes had run alone.
    assert module.chunks is not None
    assert module.recomputation is not None
    assert module.recomputation.operations > 0


def test_text_and_page_have_all_of_it(report: Report, view: MovesView, tmp_path: Path) -> None:
    page = write_page(report, tmp_path / "report.html").read_text(encoding="utf-8")
    for found in (shown(report), page):
        assert "What was done, and what it costs" in found
        assert view.gain in found
        for row in view.rows:
            assert row.gain in found
            for move in row.moves:
                assert move.spec.partition("{")[0] in found
                assert move.summary.partition("(")[0] in found


def test_the_attempt_without_any_move_is_the_program_as_it_was(
    module: ModuleReport, fit_dump: tuple[Path, hloom.CompileRecord], tmp_path: Path
) -> None:
    folder, record = fit_dump
    assert module.memory.xla_before is not None
    assert module.memory.xla_before.temp_bytes == record.temp_bytes_before
    # One that recomputes nothing and has moves is not.
    edited = Path(shutil.copytree(folder, tmp_path / folder.name))
    file = edited / "attempt-1" / "plan-05-fit.json"
    plan = json.loads(file.read_text()) | {"moves": [entry("chunk", 9, 3)]}
    file.write_text(json.dumps(plan))
    assert gather(open_dump(edited)).modules[0].memory.xla_before is None


def test_the_line_of_the_program_says_what_was_done(
    fit_dump: tuple[Path, hloom.CompileRecord],
) -> None:
    record = fit_dump[1]
    assert "run in chunks, " in record.headline
    assert "operations recomputed (+" in record.headline
    assert record.before_is_measured
    assert record.temp_bytes_before == record.attempts[0].temp_bytes
    assert record.added_work is not None
    assert 0 < record.added_work < 1


def test_candidates_with_moves_are_in_the_plot(module: ModuleReport) -> None:
    assert module.frontier is not None
    assert "plans that hloom considered" in module.frontier.caption
    assert "Numbers are attempts" in module.frontier.caption


def test_moves_that_were_priced_together_are_one_row() -> None:
    moves = [entry("chunk", None, None), entry("accumulate", 9 * MIB, 3 * MIB)]
    found = moves_of({"fit": {"moves": [*moves, entry("remat", None, None)]}}, NO_SOURCES)
    assert found is not None
    together, alone = found.rows
    assert [move.spec for move in together.moves] == ["chunk", "accumulate"]
    assert (together.gain, together.price) == ("9.00 → 3.00 MiB", "1.00 ms")
    assert (alone.gain, alone.price, found.gain) == ("", "", "")


def test_split_loops_and_stacks_on_the_host_are_told_each() -> None:
    plans = {"split-loop": {"splits": [SPLIT]}, "offload": {"stacks": [STACK]}}
    as_moves = [entry(name, 9, 3, plan=plan) for name, plan in plans.items()]
    for given in (plans, {"fit": {"moves": as_moves}}):
        found = moves_of(given, NO_SOURCES)
        assert found is not None
        [split], [stack] = (row.moves[0].details for row in found.rows)
        assert split.text == "12 iterations become 5 + 7 in 2 loops that share 3 stacks of 12.0 MiB"
        assert split.value.place.short == "model.py:10"
        assert stack.text == "12.0 MiB on the host"
        assert stack.value.place.short == "model.py:11"


def test_where_nothing_was_done_there_is_no_section() -> None:
    assert moves_of({"fit": {"moves": []}}, NO_SOURCES) is None
    assert moves_of({"split-loop": {"splits": []}}, NO_SOURCES) is None


def test_prices_are_times() -> None:
    assert [price(each) for each in (0.0, 1e-7, 2e-5, 1.5)] == [
        "nothing",
        "< 1 µs",
        "20 µs",
        "1.50 s",
    ]


@pytest.mark.parametrize(
    "plans",
    [
        {"fit": {}},
        {"fit": {"moves": 3}},
        {"fit": {"moves": ["chunk"]}},
        {"fit": {"moves": [{"pass": "chunk"}]}},
        {"fit": {"moves": [entry("chunk", -1, 3)]}},
        {"fit": {"moves": [entry("chunk", 1, 3, weighted_seconds="x")]}},
        {"fit": {"moves": [entry("offload", 1, 3, plan=[])]}},
        {"split-loop": {"splits": [SPLIT | {"trips": [5, -7]}]}},
        {"split-loop": {"splits": [SPLIT | {"stacks": "3"}]}},
        {"offload": {"stacks": [STACK | {"bytes": "many"}]}},
    ],
)
def test_a_damaged_plan_raises_what_a_report_expects(plans: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        moves_of(plans, NO_SOURCES)
