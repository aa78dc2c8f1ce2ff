"""The promises of `fit` about long loops, by the committed table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.common.tables import RESULTS

pytestmark = pytest.mark.once
[ENTRY] = json.loads((RESULTS / "long_loops_h100.json").read_text("utf-8")).values()
MIB = 2**20


def row(loop: str, way: str) -> Any:
    """The row of the loop whose title begins so."""
    [found] = [
        each for each in ENTRY["rows"] if each["loop"].startswith(loop) and each["way"] == way
    ]
    return found


@pytest.mark.parametrize(
    ("loop", "budget", "most_mib", "most_work"),
    [("wave", "10%", 25.5, 1.37), ("LSTM", "10%", 23, 1.37), ("64 layers", "50%", 601, 1.31)],
)
def test_a_loop_takes_no_more_than_nested_scans(
    loop: str, budget: str, most_mib: float, most_work: float
) -> None:
    found = row(loop, f"`fit{{budget={budget}}}`")
    assert found["temp_bytes"] <= most_mib * MIB
    assert found["work"] <= most_work


@pytest.mark.parametrize("loop", ["wave", "LSTM", "Runge-Kutta", "64 layers"])
def test_less_memory_costs_more_work(loop: str) -> None:
    rows = [row(loop, f"`fit{{budget={each}}}`") for each in ("75%", "50%", "25%", "10%", "min")]
    memory = [each["temp_bytes"] for each in rows]
    work = [each["work"] for each in rows]
    assert memory == sorted(memory, reverse=True)
    assert work == sorted(work)
