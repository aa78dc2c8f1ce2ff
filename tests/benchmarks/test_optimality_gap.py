"""The gap to the optimum: nothing is below the bound, and what is written holds it."""

from __future__ import annotations

import pytest

from benchmarks.optimality_gap.__main__ import EFFORT, measure, model_of, prepared
from benchmarks.optimality_gap.bound import bound
from benchmarks.optimality_gap.graphs import GRAPHS
from benchmarks.optimality_gap.optimum import least_peak, optimum
from benchmarks.optimality_gap.tables import BENCHMARK
from hloom.passes.planner.machine.problem import unmodified


@pytest.mark.once
def test_no_plan_is_better_than_the_optimum() -> None:
    found = measure("random 3")
    assert found["least_bytes"] <= found["floor_bytes"] <= found["unmodified_bytes"]
    assert len(found["bounds"]) == 5
    for point in found["bounds"]:
        least_s = point["bound_s"] * (1 - 1e-9)
        assert least_s <= min(point["optimum_s"], point["search_s"])


@pytest.mark.once
def test_the_bound_of_a_large_graph_is_below_the_optimum() -> None:
    with prepared(GRAPHS["gated, 1 layers"]) as module:
        problem = model_of(module).machine.problem
        everything, least = unmodified(problem).peak_bytes, least_peak(problem).bound
        for share in (0.1, 0.5, 0.9):
            limit = int(least + share * (everything - least))
            proved, below = optimum(problem, limit), bound(problem, limit, 20.0)
            assert 0.5 * proved.run.seconds < below <= proved.run.seconds * (1 + 1e-6)


def test_a_bound_that_is_missed_is_an_infinite_gap() -> None:
    point = {"search_s": None, "optimum_s": 1.0, "bound_s": 1.0, "limit_bytes": 1}
    graph = {
        "kernels": 2,
        "decisions": 1,
        "step_s": 10.0,
        "unmodified_bytes": 2**21,
        "floor_bytes": 2**21,
        "least_bytes": 2**20,
        "least_bound_bytes": 2**20,
        "bounds": [point, *(point | {"search_s": s} for s in (2.0, 4.0))],
    }
    entry = {"graphs": {"g": graph}, "large": {"h": graph}}
    lines = list(BENCHMARK.markdown({"0.12": entry}))
    small, large = (line for line in lines if line.startswith("| 1 "))
    assert small == large == "| 1 | 30.00 | 30.00 | 300.00 | 300.00 |"
    (row,) = (line for line in lines if line.startswith("| g "))
    assert "none / 20.0 / 40.0" in row
    (row,) = (line for line in lines if line.startswith("| h "))
    assert row.endswith("| none / 20.0 / 40.0 | 10.0 / 10.0 / 10.0 |")


@pytest.mark.once
@pytest.mark.parametrize("name", ["associative scan, 1 layer", "gated, 2 layers", "random 0"])
def test_the_search_alone_is_near_the_optimum_with_least_memory(name: str) -> None:
    """It sinks operations to their kernel, or carries clones into another window."""
    with prepared(GRAPHS[name]) as module:
        model = model_of(module)
        problem = model.machine.problem
        everything, least = unmodified(problem).peak_bytes, least_peak(problem).bound
        assert model.floor().peak_bytes <= least * 1.001
        limit = int(least + 0.1 * (everything - least))
        found, best = model.within(limit), optimum(problem, limit, EFFORT).run
        assert found.seconds <= best.seconds + 0.01 * model.step_seconds()
