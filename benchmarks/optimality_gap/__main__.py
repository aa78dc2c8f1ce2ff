"""How far the plans of `remat` are from the optimum on small graphs.

    python -m benchmarks.optimality_gap     (no GPU, nothing compiled; --graph NAME does one graph)

Writes benchmarks/results/optimality_gap.json, which keeps one entry for each version of JAX it was
run with, and .md, the same as tables. All figures are of hloom's own model of an H100, the same on
every machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir

from benchmarks.optimality_gap.graphs import GRAPHS
from benchmarks.optimality_gap.search import MachineModel
from benchmarks.optimality_gap.tables import BENCHMARK
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.exact.optimum import Effort, least_peak, optimum
from hloom.passes.planner.exact.plan import schedule_of
from hloom.passes.planner.exact.problem import unmodified
from hloom.passes.remat import Remat

TARGET = "h100_sxm"
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where the bounds lie between the least peak and the program as it is."""

EFFORT = Effort(nodes=300, gap=1e-3)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimality_gap")
    parser.add_argument("--graph", choices=GRAPHS, action="append", help="print one graph")
    chosen = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    for name in chosen.graph or GRAPHS:
        print(name, flush=True)
        found[name] = measure(name)
        if chosen.graph:
            print(found[name])
    if not chosen.graph:
        print(BENCHMARK.write(graphs=found))


def measure(name: str) -> dict[str, Any]:
    """One graph: its floors, and the added time at each bound, by the search and at the optimum."""
    target = targets.load(TARGET)
    module = clone_module(GRAPHS[name]().compiler_ir())
    with module.context, ir.Location.unknown():
        Pipeline.parse("inline,cse,free-constants").run(module, target=target)
        model = MachineModel(module, target, Remat().min_bytes)
        problem = model.machine.problem
        top, floor, lowest = unmodified(problem), model.floor(), least_peak(problem, EFFORT)
        assert lowest.run is not None, "what is small enough for this has a least peak"
        width = top.peak_bytes - lowest.run.peak_bytes
        return {
            "kernels": len(problem.nodes),
            "decisions": sum(map(len, problem.again.values())),
            "step_s": model.step_seconds(),
            "unmodified_bytes": top.peak_bytes,
            "floor_bytes": floor.peak_bytes,
            "least_bytes": lowest.run.peak_bytes,
            "least_bound_bytes": lowest.bound,
            "bounds": [_at(model, int(lowest.run.peak_bytes + share * width)) for share in SHARES],
        }


def _at(model: MachineModel, limit_bytes: int) -> dict[str, Any]:
    """What is added within a bound: by the search, at the optimum, and by the optimum's plan."""
    best = optimum(model.machine.problem, limit_bytes, EFFORT)
    searched = model.within(limit_bytes)
    schedule = None if best.run is None else schedule_of(model.machine, best.run, limit_bytes)
    return {
        "limit_bytes": limit_bytes,
        "search_s": None if searched is None else searched.seconds,
        "optimum_s": None if best.run is None else best.run.seconds,
        "bound_s": best.bound,
        "plan_s": None if schedule is None else model.run_of(schedule).seconds,
    }


if __name__ == "__main__":
    main()
