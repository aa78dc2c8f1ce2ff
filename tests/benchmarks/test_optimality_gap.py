"""The gap to the optimum: nothing is below the bound, and what is written holds it."""

from __future__ import annotations

import pytest

from benchmarks.optimality_gap.__main__ import measure
from benchmarks.optimality_gap.tables import BENCHMARK


@pytest.mark.once
def test_no_plan_is_better_than_the_optimum() -> None:
    found = measure("random 3")
    assert found["least_bytes"] <= found["floor_bytes"] <= found["unmodified_bytes"]
    assert len(found["bounds"]) == 5
    for point in found["bounds"]:
        least_s = point["bound_s"] * (1 - 1e-9)
        assert least_s <= min(point["optimum_s"], point["plan_s"], point["search_s"])


def test_a_bound_that_is_missed_is_an_infinite_gap() -> None:
    point = {"search_s": None, "optimum_s": 1.0, "bound_s": 1.0, "plan_s": 1.5, "limit_bytes": 1}
    graph = {
        "kernels": 2,
        "decisions": 1,
        "step_s": 10.0,
        "unmodified_bytes": 2**21,
        "floor_bytes": 2**21,
        "least_bytes": 2**20,
        "least_bound_bytes": 2**20,
        "bounds": [point, point | {"search_s": 2.0}, point | {"search_s": 4.0}],
    }
    lines = list(BENCHMARK.markdown({"0.12": {"graphs": {"g": graph}}}))
    (search,) = [line for line in lines if line.startswith("| search")]
    assert search == "| search | 1 | 30.00 | 30.00 | 300.00 | 300.00 |"
    (row,) = [line for line in lines if line.startswith("| g ")]
    assert "none / 20.0 / 40.0" in row
