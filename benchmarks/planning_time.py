"""How long `remat` plans, on modules of growing size and beside XLA's compile.

    python -m benchmarks.planning_time        (about 20 minutes; the comparison with XLA needs the
                                              extra cuda13 and no GPU)

Writes benchmarks/results/planning_time.json, which keeps one entry for each version of JAX it was
run with, planning_time.md, the same as tables, and the curve in planning_time.svg. Times depend on
the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir

from benchmarks import carries_time, programs_time, scans_time
from benchmarks.common.h100 import measure_times, placement
from benchmarks.common.measure import Benchmark, Columns, Row, code, figure, section, text
from benchmarks.common.tables import RESULTS, Report
from benchmarks.programs.gpt import Gpt
from hloom import targets
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.feedback import record_in
from hloom.passes.framework.options import print_bytes
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.record import RematRecord

TARGET = "h100_sxm"
LIMIT_S = 10.0
"""Planning a module of 100,000 operations must not take longer."""

OPERATIONS = (1_000, 3_000, 10_000, 30_000, 100_000)
SPECS = {
    "floor": "remat{{budget=1B}}",
    "half": "remat{{budget={half}}}",
}
REPEATS = 3
"""Compiles that are timed beside XLA; the times are their medians."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning_time")
    parser.add_argument("--largest", type=int, default=OPERATIONS[-1], help="operations at most")
    parser.add_argument("--without-xla", action="store_true", help="leave the comparison out")
    parser.add_argument(
        "--only-carries",
        action="store_true",
        help="measure the loops of many carries anew, and keep the other figures of this JAX",
    )
    parser.add_argument(
        "--only-scans", action="store_true", help="the same of programs of many scans"
    )
    parser.add_argument(
        "--only-programs",
        nargs="*",
        choices=programs_time.PROGRAMS,
        help="the same of programs of the frontier, of all where none is named",
    )
    chosen = parser.parse_args(arguments)
    if chosen.only_programs is not None:
        for row in programs_time.measure(chosen.only_programs or programs_time.PROGRAMS):
            before = BENCHMARK.before()  # each is written at once: a run may be cut short
            rows = programs_time.replaced(before.get("programs", ()), row)
            BENCHMARK.write(**before | {"programs": rows})
        return
    if chosen.only_scans:
        print(BENCHMARK.write(**BENCHMARK.before() | {"scans": scans_time.measure()}))
        return
    many = carries_time.measure(with_xla=not chosen.without_xla)
    if chosen.only_carries:
        print(BENCHMARK.write(**BENCHMARK.before() | {"carries": many}))
        _draw()
        return
    curves = {
        name: [
            _plan_times(name, layers)
            for layers in _layers(name, [n for n in OPERATIONS if n <= chosen.largest])
        ]
        for name in MODELS
    }
    beside_xla = [] if chosen.without_xla else _beside_xla()
    scans = scans_time.measure()
    programs = [] if chosen.without_xla else list(programs_time.measure())
    found = {"curves": curves, "beside_xla": beside_xla, "carries": many, "scans": scans}
    print(BENCHMARK.write(**found, **({"programs": programs} if programs else {})))
    _draw()


def _mlp(layers: int) -> Any:
    """The gradient step of a plain stack of layers, lowered; about 50 operations a layer."""
    width, batch = 256, 4096

    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = x + jax.nn.gelu(x @ kernel)
        return (x**2).mean()

    kernel = jax.ShapeDtypeStruct((width, width), "float32")
    x = jax.ShapeDtypeStruct((batch, width), "float32")
    return jax.jit(jax.value_and_grad(loss)).lower([kernel] * layers, x)


def _gpt(layers: int) -> Any:
    return Gpt(scanned=False, layers=layers).lower()


MODELS: dict[str, Callable[[int], Any]] = {"GPT": _gpt, "MLP": _mlp}


def _layers(name: str, operations: Sequence[int]) -> list[int]:
    """How many layers give a model about so many operations."""
    small, large = (_size(MODELS[name](layers).compiler_ir()) for layers in (2, 4))
    by_layer = (large - small) / 2
    return [max(1, round((wanted - small) / by_layer) + 2) for wanted in operations]


def _size(module: ir.Module) -> int:
    """Operations of the module once calls are inlined, those in regions of reductions as well."""
    inlined = clone_module(module)
    Pipeline.parse("inline").run(inlined, target=targets.load(TARGET))
    count = 0

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal count
        count += 1
        return ir.WalkResult.ADVANCE

    inlined.operation.walk(visit)
    return count


def _plan_times(name: str, layers: int) -> dict[str, Any]:
    """Seconds of one run of the pipeline for each spec, nothing compiled."""
    print(f"planning: {name}, {layers} layers", flush=True)
    module = MODELS[name](layers).compiler_ir()
    found: dict[str, Any] = {"layers": layers, "operations": _size(module), "specs": {}}
    with module.context:
        half = print_bytes(predict(module, rules=XLA_GPU).step_bytes // 2)
    for label, spec in SPECS.items():
        pipeline = Pipeline.parse(spec.format(half=half))
        start_s = time.perf_counter()
        clone = clone_module(module)
        clone_s = time.perf_counter() - start_s
        runs = {run.name: run for run in pipeline.run(clone, target=targets.load(TARGET)).runs}
        remat = runs.pop("remat")
        found["specs"][label] = {
            "prepare_s": clone_s + sum(run.plan_s + run.apply_s for run in runs.values()),
            "plan_s": remat.plan_s,
            "apply_s": remat.apply_s,
            "settings": len(record_in(remat.plan, RematRecord).considered),
            "summary": remat.summary,
        }
    return found


def _beside_xla() -> list[dict[str, Any]]:
    """The 12-layer GPT compiled for an H100: seconds in hloom and in XLA, attempts together."""
    sharding = placement()
    rows = []
    for scanned in (False, True):
        lowered = Gpt(scanned=scanned).lower(sharding)
        for spec in ("remat", "remat{budget=50%}", "remat{budget=25%}"):
            print(f"compiling: scanned={scanned}, {spec}", flush=True)
            times = [measure_times(lowered, spec) for _ in range(REPEATS)]
            rows.append(
                {
                    "layers": "scanned" if scanned else "unrolled",
                    "spec": spec,
                    "pass_s": statistics.median(one.pass_s for one in times),
                    "xla_compile_s": statistics.median(one.xla_compile_s for one in times),
                }
            )
    return rows


def fitted_exponent(sizes: Sequence[float], times_s: Sequence[float]) -> float:
    """The exponent e of the curve time = c * size**e that fits best, by least squares of logs."""
    return float(np.polyfit(np.log(sizes), np.log(times_s), 1)[0])


_CURVES: Columns = {
    "model": text("model"),
    "budget": text("budget"),
    "layers": text("layers"),
    "operations": figure("operations", ","),
    "prepare, s": figure("prepare_s", ".3f"),
    "plan, s": figure("plan_s", ".3f"),
    "apply, s": figure("apply_s", ".3f"),
    "settings": text("settings"),
    "plan, µs an operation": lambda row: f"{row['plan_s'] / row['operations'] * 1e6:.1f}",
}
_EXPONENTS: Columns = {
    "model": text("model"),
    "budget": text("budget"),
    "exponent": figure("exponent", ".2f"),
    "exponent for a setting / n log n": lambda row: (
        f"{row['of_each']:.2f} / {row['linearithmic']:.2f}"
    ),
}
_BESIDE_XLA: Columns = {
    "layers": text("layers"),
    "spec": code("spec"),
    "passes, s": figure("pass_s", ".3f"),
    "XLA, s": figure("xla_compile_s", ".2f"),
    "share": lambda row: f"{row['pass_s'] / row['xla_compile_s'] * 100:.1f} %",
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    curves = [
        [point | point["specs"][label] | {"model": name, "budget": label} for point in points]
        for name, points in entry["curves"].items()
        for label in SPECS
    ]
    rows = [row for curve in curves for row in curve]
    yield from section(f"## jax {version}, Python {entry['python']}", _CURVES, rows, names=2)
    exponents = (_exponents(curve) for curve in curves if len(curve) > 1)
    yield from section("", _EXPONENTS, exponents, names=2)
    slowest = max((row["plan_s"] for row in rows), default=0.0)
    yield from ("", f"The slowest plan took {slowest:.1f} s; the limit is {LIMIT_S:.0f} s.")
    if entry["beside_xla"]:
        yield ""
        yield f"The 12-layer GPT beside XLA, all attempts together, medians of {REPEATS}:"
        yield from section("", _BESIDE_XLA, entry["beside_xla"], names=2)
    if "carries" in entry:
        yield ""
        yield from carries_time.markdown(entry["carries"], fitted_exponent)
    if "scans" in entry:
        yield ""
        yield from scans_time.markdown(entry["scans"], fitted_exponent)
    if "programs" in entry:
        yield ""
        yield from programs_time.markdown(entry["programs"])


def _exponents(curve: Sequence[Row]) -> dict[str, Any]:
    """Of the whole times, of those for each setting, and of n log n over the same sizes."""
    sizes = [point["operations"] for point in curve]
    return {
        "model": curve[0]["model"],
        "budget": curve[0]["budget"],
        "exponent": fitted_exponent(sizes, [one["plan_s"] for one in curve]),
        "of_each": fitted_exponent(sizes, [one["plan_s"] / one["settings"] for one in curve]),
        "linearithmic": fitted_exponent(sizes, [size * math.log(size) for size in sizes]),
    }


class _WithPicture(Benchmark):
    """The curves stand below the tables of all versions."""

    def markdown(self, report: Report) -> Iterator[str]:
        yield from super().markdown(report)
        yield from ("", "![planning time over operations](planning_time.svg)")


BENCHMARK = _WithPicture(
    "planning_time",
    "planning_time",
    "How long `remat` plans",
    "Repeated layers, unrolled, planned for an H100. Operations are counted after inlining. "
    "Preparation is cloning, inlining, CSE and freeing constants. The exponent is that of the "
    "curve `seconds = c * operations^e` through the planning times, then through the times for "
    "each setting that was tried (long modules are planned with fewer), and, after the stroke, "
    "what n log n would have over the same sizes.",
    _tables,
)


def _draw() -> None:
    """The curves, both axes logarithmic. Needs matplotlib, of the extra demo."""
    import matplotlib as mpl

    mpl.use("svg")
    # Without these the same figures give other bytes at each run.
    mpl.rcParams["svg.hashsalt"] = "hloom"
    from matplotlib import pyplot

    report = json.loads((RESULTS / "planning_time.json").read_text("utf-8"))
    picture, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for version, entry in report.items():
        for name, points in entry["curves"].items():
            for label in SPECS:
                sizes = [point["operations"] for point in points]
                times = [point["specs"][label]["plan_s"] for point in points]
                axis.loglog(sizes, times, "o-", markersize=3, label=f"{name}, {label}, {version}")
    axis.axhline(LIMIT_S, color="gray", linewidth=0.7, linestyle="--")
    axis.set_xlabel("operations")
    axis.set_ylabel("planning, s")
    axis.legend(fontsize=7)
    picture.savefig(RESULTS / "planning_time.svg", metadata={"Date": None})
    pyplot.close(picture)


if __name__ == "__main__":
    main()
