"""The promises of `fit` about long loops, by the committed table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.common.tables import RESULTS
from benchmarks.long_loops import AS_BY_HAND

pytestmark = pytest.mark.once
ENTRY = json.loads((RESULTS / "long_loops_h100.json").read_text("utf-8"))["0.10.2"]
MIB = 2**20


def row(loop: str, way: str) -> Any:
    """The row of the loop whose title begins so."""
    [found] = [
        each for each in ENTRY["rows"] if each["loop"].startswith(loop) and each["way"] == way
    ]
    return found


@pytest.mark.parametrize(
    ("loop", "way", "most_mib", "most_work"),
    [
        ("wave", "`fit{budget=10%}`", 25.5, 1.37),
        ("LSTM", AS_BY_HAND, 23, 1.37),
        ("64 layers", "`fit{budget=50%}`", 601, 1.31),
    ],
)
def test_a_loop_takes_no_more_than_nested_scans(
    loop: str, way: str, most_mib: float, most_work: float
) -> None:
    found = row(loop, way)
    assert found["temp_bytes"] <= most_mib * MIB
    assert found["work"] <= most_work


def test_in_the_memory_of_the_best_nested_scans_the_work_is_less() -> None:
    loops = {each["loop"] for each in ENTRY["rows"]}
    worse = set()
    for loop in loops:
        by_hand = [e for e in ENTRY["rows"] if e["loop"] == loop and e["way"].startswith("by hand")]
        least, found = min(by_hand, key=lambda each: each["temp_bytes"]), row(loop, AS_BY_HAND)
        if found["temp_bytes"] > least["temp_bytes"] or found["work"] >= least["work"]:
            worse.add(loop.split(",")[0])
    assert not worse


@pytest.mark.parametrize("loop", ["wave", "LSTM", "Runge-Kutta", "64 layers"])
def test_less_memory_costs_more_work(loop: str) -> None:
    rows = [row(loop, f"`fit{{budget={each}}}`") for each in ("50%", "25%", "10%", "2%", "min")]
    # Far above a budget that is missed the last bytes are not worth all time.
    rows = [each for each in rows if each["complaint"] is None]
    memory = [each["temp_bytes"] for each in rows]
    work = [each["work"] for each in rows]
    assert memory == sorted(memory, reverse=True)
    assert work == sorted(work)
