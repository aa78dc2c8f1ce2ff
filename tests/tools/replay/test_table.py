"""The table of `hloom replay`: times with their spread, and a change only where it is clear."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hloom_tools.replay.table import Run, runs


def run(title: str, times_s: Sequence[float]) -> Run:
    runnable: Any = SimpleNamespace(
        step_bytes=2**20,
        memory=SimpleNamespace(temp_bytes=2**19),
        pass_s=0.1,
        record=SimpleNamespace(compile_s=0.1 * len(title)),
    )
    return Run(title, runnable, times_s)


def rows(one: Sequence[float], other: Sequence[float]) -> dict[Any, list[Any]]:
    [table] = runs([run("off", one), run("remat", other)]).tables
    return {row.cells[0].value: [cell.value for cell in row.cells[1:]] for row in table.rows}


def test_runs_that_overlap_have_no_percentage() -> None:
    found = rows([0.010, 0.012, 0.014], [0.013, 0.015, 0.016])
    assert found["run, median of 3"] == ["12.0 ms", "15.0 ms", ""]
    assert found["most of them"] == ["10.0 to 14.0 ms", "13.0 to 16.0 ms", "they overlap"]
    # A compile is measured once: nothing is known of its spread.
    assert found["XLA compile"][-1] == ""


def test_runs_that_are_apart_have_one_whatever_one_run_in_ten_does() -> None:
    found = rows([0.010] * 9 + [0.5], [0.020] * 9 + [0.001])
    assert found["run, median of 10"][-1] == "+100 %"
    assert found["most of them"] == ["10.0 to 10.0 ms", "20.0 to 20.0 ms", ""]


def test_what_did_not_run_has_no_times() -> None:
    assert {"run, median of 0", "most of them"}.isdisjoint(rows([], []))
