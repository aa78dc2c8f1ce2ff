"""How far a predicted frontier is from XLA, and what it costs beside one compile.

    python -m benchmarks.budgets         (needs the extras cuda13 and demo; no GPU; some minutes on
                                          a small machine; --program NAME does one program)

Each program's frontier is estimated for an H100, and the plan of each of its points is compiled for
one. Writes benchmarks/results/budgets_h100.json, which keeps one entry for each version of JAX it
was run with, and .md, the same as tables; with --picture the demo's frontier into docs/.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax.extend.mlir import ir

from benchmarks.budgets.tables import BENCHMARK, POINTS, TIMED_BUDGETS
from benchmarks.common.h100 import TARGET, placement
from benchmarks.common.measure import cpu_seconds, without_cache
from benchmarks.common.subjects import SUBJECTS
from hloom import targets
from hloom._jax.executables import memory_figures
from hloom._jax.execution import compile_module
from hloom._jax.options import OPTION
from hloom.passes.fit import Fit
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.frontier import FrontierAnalysis
from hloom_tools.estimates.estimating import frontier_of

DEMO = "demo"
PROGRAMS = (DEMO, "gpt_scanned", "gpt_unrolled", "llama", "unet", "lstm")

_PICTURE = Path(__file__).resolve().parents[2] / "docs" / "budgets.svg"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets")
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    parser.add_argument("--picture", action="store_true", help="draw the demo's frontier")
    chosen = parser.parse_args(arguments)
    sharding = placement()
    without_cache()
    if chosen.picture:
        module = _lower(DEMO, sharding).compiler_ir()
        found = frontier_of(module, targets.load(TARGET), TIMED_BUDGETS)
        _PICTURE.write_text(found.svg(), encoding="utf-8")
        return
    programs: dict[str, Any] = BENCHMARK.before().get("programs", {})
    for name in chosen.program or PROGRAMS:
        programs[name] = _measure(name, sharding)
        known = {name: programs[name] for name in PROGRAMS if name in programs}
        written = BENCHMARK.write(programs=known)
    print(written)


def _lower(name: str, sharding: Any) -> Any:
    if name != DEMO:
        return SUBJECTS[name].lower(None, sharding)
    from hloom_tools.demo.program import ModelSizes, TrainStep

    return TrainStep(ModelSizes(), seed=0).lower(sharding)


def _measure(name: str, sharding: Any) -> dict[str, Any]:
    module = _lower(name, sharding).compiler_ir()
    devices = list(sharding.device_set)
    # Once for what the process does once, such as importing scipy's solvers.
    frontier_of(module, targets.load(TARGET), TIMED_BUDGETS)
    start_s = cpu_seconds()
    frontier_of(module, targets.load(TARGET), TIMED_BUDGETS)
    estimate_s = cpu_seconds() - start_s
    start_s = cpu_seconds()
    compile_module(clone_module(module), devices, {OPTION: "off"})
    compile_s = cpu_seconds() - start_s
    prepared = clone_module(module)
    pipeline = Pipeline((Fit(budget=Budget()),))
    driver = pipeline.driver("cuda")
    assert driver is not None
    pipeline.run(prepared, target=targets.load(TARGET), stop=driver[0])
    rows: list[dict[str, Any]] = []
    with prepared.context, ir.Location.unknown():
        analysis = FrontierAnalysis(prepared, targets.load(TARGET), Fit().min_bytes)
        for point in analysis.along(POINTS):
            rewritten = analysis.rewritten(point.estimate)
            compiled = compile_module(rewritten, devices, {OPTION: "off"})
            temp_bytes = memory_figures(compiled).temp_bytes
            assert temp_bytes is not None
            print(f"{name}: {point.temp_bytes / temp_bytes - 1:+.1%}", flush=True)
            rows.append(
                {
                    "spec": "off" if point.budget is None else str(Fit(budget=point.budget)),
                    "predicted_temp_bytes": point.temp_bytes,
                    "temp_bytes": temp_bytes,
                    "added_seconds": point.added_seconds,
                    "added_flops": point.added_flops,
                }
            )
    return {
        "points": rows,
        "operations": len(analysis.model.operations),
        "estimate_cpu_s": round(estimate_s, 3),
        "compile_cpu_s": round(compile_s, 3),
    }


if __name__ == "__main__":
    main()
