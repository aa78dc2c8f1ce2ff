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
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.extend.mlir import ir

import hloom
from benchmarks import carries_time
from benchmarks.common.h100 import measure_times, placement
from benchmarks.common.tables import RESULTS, Report, heading, table, update_report
from benchmarks.programs.gpt import Gpt
from hloom import targets
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.options import print_bytes
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module

TARGET = "h100_sxm"
LIMIT_S = 10.0
"""Planning a module of 100,000 operations must not take longer."""

OPERATIONS = (1_000, 3_000, 10_000, 30_000, 100_000)
SPECS = {
    "floor": "remat{{budget=1}}",
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
    chosen = parser.parse_args(arguments)
    many = carries_time.measure(with_xla=not chosen.without_xla)
    if chosen.only_carries:
        known = json.loads((RESULTS / "planning_time.json").read_text("utf-8"))[jax.__version__]
        print(update_report("planning_time", known | {"carries": many}, _markdown))
        return
    curves = {
        name: [
            _plan_times(name, layers)
            for layers in _layers(name, [n for n in OPERATIONS if n <= chosen.largest])
        ]
        for name in MODELS
    }
    entry = {
        "hloom": hloom.__version__,
        "python": platform.python_version(),
        "curves": curves,
        "beside_xla": [] if chosen.without_xla else _beside_xla(),
        "carries": many,
    }
    print(update_report("planning_time", entry, _markdown))


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
        half = print_bytes(predict(module).step_bytes // 2)
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
            "settings": len(cast(list[Any], remat.plan["considered"])),
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


def _markdown(report: Report) -> Iterator[str]:
    yield from heading(
        "How long `remat` plans",
        "planning_time",
        "Repeated layers, unrolled, planned for an H100. Operations are counted after inlining. "
        "Preparation is cloning, inlining, CSE and freeing constants. The exponent is that of the "
        "curve `seconds = c * operations^e` through the planning times, then through the times for "
        "each setting that was tried (long modules are planned with fewer), and, after the stroke, "
        "what n log n would have over the same sizes.",
    )
    for version, entry in report.items():
        yield ""
        yield f"## jax {version}, Python {entry['python']}"
        yield ""
        columns = ["model", "budget", "layers", "operations", "prepare, s", "plan, s", "apply, s"]
        columns += ["settings", "plan, µs an operation"]
        yield from table(columns, _curve_cells(entry), names=2)
        yield ""
        columns = ["model", "budget", "exponent", "exponent for a setting / n log n"]
        yield from table(columns, _exponents(entry), names=2)
        yield ""
        slowest = max(_slowest(entry), default=0.0)
        yield f"The slowest plan took {slowest:.1f} s; the limit is {LIMIT_S:.0f} s."
        if entry["beside_xla"]:
            yield ""
            yield f"The 12-layer GPT beside XLA, all attempts together, medians of {REPEATS}:"
            yield ""
            columns = ["layers", "spec", "passes, s", "XLA, s", "share"]
            yield from table(columns, map(_xla_cells, entry["beside_xla"]), names=2)
        if "carries" in entry:
            yield ""
            yield from carries_time.markdown(entry["carries"], fitted_exponent)
    _draw(report)
    yield ""
    yield "![planning time over operations](planning_time.svg)"


def _curve_cells(entry: dict[str, Any]) -> Iterator[list[str]]:
    for name, points in entry["curves"].items():
        for label in SPECS:
            for point in points:
                times = point["specs"][label]
                seconds = [times["prepare_s"], times["plan_s"], times["apply_s"]]
                yield [
                    name,
                    label,
                    str(point["layers"]),
                    f"{point['operations']:,}",
                    *(f"{one:.3f}" for one in seconds),
                    str(times["settings"]),
                    f"{times['plan_s'] / point['operations'] * 1e6:.1f}",
                ]


def _exponents(entry: dict[str, Any]) -> Iterator[list[str]]:
    for name, points in entry["curves"].items():
        for label in SPECS:
            sizes = [point["operations"] for point in points]
            if len(sizes) < 2:
                continue
            specs = [point["specs"][label] for point in points]
            whole = fitted_exponent(sizes, [one["plan_s"] for one in specs])
            each = fitted_exponent(sizes, [one["plan_s"] / one["settings"] for one in specs])
            linearithmic = fitted_exponent(sizes, [size * math.log(size) for size in sizes])
            yield [name, label, f"{whole:.2f}", f"{each:.2f} / {linearithmic:.2f}"]


def _slowest(entry: dict[str, Any]) -> Iterator[float]:
    for points in entry["curves"].values():
        for point in points:
            yield from (times["plan_s"] for times in point["specs"].values())


def _xla_cells(row: dict[str, Any]) -> list[str]:
    share = row["pass_s"] / row["xla_compile_s"]
    times = [f"{row['pass_s']:.3f}", f"{row['xla_compile_s']:.2f}", f"{share * 100:.1f} %"]
    return [row["layers"], f"`{row['spec']}`", *times]


def _draw(report: Report) -> None:
    """The curves, both axes logarithmic. Needs matplotlib, of the extra demo."""
    import matplotlib as mpl

    mpl.use("svg")
    # Without these the same figures give other bytes at each run.
    mpl.rcParams["svg.hashsalt"] = "hloom"
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
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
    figure.savefig(RESULTS / "planning_time.svg", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
