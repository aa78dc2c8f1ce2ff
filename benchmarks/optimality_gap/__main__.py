"""How far the plans of `remat` are from the optimum.

    python -m benchmarks.optimality_gap            (no GPU, nothing compiled; half an hour)
    python -m benchmarks.optimality_gap --search   (a minute: what was proved before is kept)
    python -m benchmarks.optimality_gap --graph NAME

Writes benchmarks/results/optimality_gap.json, which keeps one entry for each version of JAX it was
run with, and .md, the same as tables. All figures are of hloom's own model of an H100, the same on
every machine; bounds of large graphs are what HiGHS proves in a time, and differ a little.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jax.extend.mlir import ir

from benchmarks.optimality_gap.bound import bound
from benchmarks.optimality_gap.graphs import GRAPHS, LARGE, Graph
from benchmarks.optimality_gap.optimum import Effort, least_peak, optimum
from benchmarks.optimality_gap.search import MachineModel
from benchmarks.optimality_gap.tables import BENCHMARK
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.machine.problem import unmodified
from hloom.passes.remat import Remat

TARGET = "h100_sxm"
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where the bounds on memory lie, between the least peak and the program as it is."""

EFFORT = Effort(nodes=300, gap=1e-3)

_BOUND_S = 20.0
"""What HiGHS may take for a bound of a large graph."""

_Known = dict[str, Any] | None
"""What was measured of a graph before, whose proofs are kept."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimality_gap")
    every = [*GRAPHS, *LARGE]
    parser.add_argument("--graph", choices=every, action="append", help="print one graph")
    parser.add_argument("--search", action="store_true", help="keep what was proved before")
    chosen = parser.parse_args(arguments)
    before = BENCHMARK.before() if chosen.search else {}
    found: dict[str, dict[str, Any]] = {"graphs": {}, "large": {}}
    for kind, names, of in (("graphs", GRAPHS, measure), ("large", LARGE, measure_large)):
        for name in names:
            if chosen.graph and name not in chosen.graph:
                continue
            found[kind][name] = of(name, before.get(kind, {}).get(name))
            print(name, found[kind][name] if chosen.graph else "", flush=True)
    if not chosen.graph:
        print(BENCHMARK.write(**found))


def measure(name: str, known: _Known = None) -> dict[str, Any]:
    """One graph: its floors, and the added time at each bound, by the search and at the optimum."""
    with prepared(GRAPHS[name]) as module:
        model = model_of(module)
        found = _described(model)
        proved = _proved(model) if known is None or _differ(known, found) else known
        bounds = [
            {
                **{key: point[key] for key in ("limit_bytes", "optimum_s", "bound_s")},
                "search_s": _searched(model, point["limit_bytes"]),
            }
            for point in proved["bounds"]
        ]
        proved = {key: proved[key] for key in ("least_bytes", "least_bound_bytes")}
        return {**proved, **found, "bounds": bounds}


def _proved(model: MachineModel) -> dict[str, Any]:
    """What the solver finds of a graph: the least peak, and the optimum at each bound."""
    problem = model.machine.problem
    lowest = least_peak(problem, EFFORT)
    assert lowest.run is not None, "what is small enough for this has a least peak"
    return {
        "least_bytes": lowest.run.peak_bytes,
        "least_bound_bytes": lowest.bound,
        "bounds": [
            _optimum(model, limit)
            for limit in _limits(lowest.run.peak_bytes, unmodified(problem).peak_bytes)
        ],
    }


def _optimum(model: MachineModel, limit_bytes: int) -> dict[str, Any]:
    """What is added within a bound at the optimum."""
    best = optimum(model.machine.problem, limit_bytes, EFFORT)
    return {
        "limit_bytes": limit_bytes,
        "optimum_s": None if best.run is None else best.run.seconds,
        "bound_s": best.bound,
    }


def measure_large(name: str, known: _Known = None) -> dict[str, Any]:
    """A graph of which a bound alone is known, from the search's floor to the graph as it is."""
    with prepared(LARGE[name]) as module:
        model = model_of(module)
        found, problem = _described(model), model.machine.problem
        if known is None or _differ(known, found):
            limits = _limits(found["floor_bytes"], found["unmodified_bytes"])
            points: list[dict[str, Any]] = [
                {"limit_bytes": limit, "bound_s": bound(problem, limit, _BOUND_S)}
                for limit in limits
            ]
        else:
            points = [{key: p[key] for key in ("limit_bytes", "bound_s")} for p in known["bounds"]]
        bounds = [{**each, "search_s": _searched(model, each["limit_bytes"])} for each in points]
        return {**found, "bounds": bounds}


def _described(model: MachineModel) -> dict[str, Any]:
    problem = model.machine.problem
    return {
        "kernels": len(problem.nodes),
        "decisions": sum(map(len, problem.again.values())),
        "step_s": model.step_seconds(),
        "unmodified_bytes": unmodified(problem).peak_bytes,
        "floor_bytes": model.floor().peak_bytes,
    }


def _differ(known: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether what was proved is of another graph, by its size, its memory and its time."""
    keys = ("kernels", "decisions", "unmodified_bytes", "step_s")
    return any(known[key] != found[key] for key in keys)


def _limits(least_bytes: int, most_bytes: int) -> list[int]:
    return [int(least_bytes + share * (most_bytes - least_bytes)) for share in SHARES]


def _searched(model: MachineModel, limit_bytes: int) -> float | None:
    """The time that the search's best plan within a bound adds; None where it has none."""
    found = model.within(limit_bytes)
    return None if found is None else found.seconds


def model_of(module: ir.Module) -> MachineModel:
    return MachineModel(module, targets.load(TARGET), Remat().min_bytes)


@contextmanager
def prepared(graph: Graph) -> Iterator[ir.Module]:
    """A graph's module as `remat` is given it."""
    module = clone_module(graph().compiler_ir())
    with module.context, ir.Location.unknown():
        Pipeline.parse("inline,cse,free-constants").run(module, target=targets.load(TARGET))
        yield module


if __name__ == "__main__":
    main()
