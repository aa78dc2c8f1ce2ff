"""How `remat` plans loops of hundreds of carries: part of `benchmarks.planning_time`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
from jax.extend.mlir import ir

from benchmarks.common.h100 import TARGET, measure_times, placement
from benchmarks.common.tables import table
from benchmarks.programs import carries
from hloom import targets
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.options import print_bytes
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module

PROGRAMS: dict[str, Callable[[int], tuple[Any, tuple[Any, ...]]]] = {
    "training through a simulator": carries.reinforcement,
    "scan of neighbours": carries.neighbours,
}
CARRIES = (100, 200, 400, 800)
SPECS = {
    "none": "remat",
    "floor": "remat{{budget=1B}}",
    "half": "remat{{budget={half}}}",
}
BESIDE_XLA = 100
"""Carries of the programs that are compiled."""


def measure(*, with_xla: bool) -> dict[str, Any]:
    """Times of planning alone, on the CPU's clock; and, of smaller programs, beside XLA."""
    curves = {
        name: [_point(program, count) for count in CARRIES] for name, program in PROGRAMS.items()
    }
    return {"curves": curves, "beside_xla": list(_beside_xla()) if with_xla else []}


def _point(program: Callable[[int], Any], count: int) -> dict[str, Any]:
    print(f"planning: {program.__name__}, {count} carries", flush=True)
    function, arguments = program(count)
    module = cast(ir.Module, jax.jit(function).lower(*arguments).compiler_ir())
    inlined = clone_module(module)
    Pipeline.parse("inline").run(inlined, target=targets.load(TARGET))
    with module.context:
        half = print_bytes(predict(inlined, rules=XLA_GPU).step_bytes // 2)
    found: dict[str, Any] = {
        "carries": count,
        "operations": sum(1 for _ in walk.operations(inlined.operation)),
        "specs": {},
    }
    for label, spec in SPECS.items():
        pipeline, clone = Pipeline.parse(spec.format(half=half)), clone_module(module)
        start_s = time.process_time()
        run = pipeline.run(clone, target=targets.load(TARGET)).runs[-1]
        found["specs"][label] = {"cpu_s": time.process_time() - start_s, "summary": run.summary}
    return found


def _beside_xla() -> Iterator[dict[str, Any]]:
    sharding = placement()
    for name, program in PROGRAMS.items():
        function, arguments = program(BESIDE_XLA)
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
        )
        lowered = jax.jit(function).lower(*placed)
        for spec in ("remat", "remat{budget=50%}", "remat{budget=25%}"):
            print(f"compiling: {program.__name__}, {spec}", flush=True)
            times = measure_times(lowered, spec)
            yield {
                "program": name,
                "spec": spec,
                "pass_s": times.pass_s,
                "xla_compile_s": times.xla_compile_s,
            }


def markdown(entry: dict[str, Any], fitted_exponent: Callable[..., float]) -> Iterator[str]:
    """The tables of one version of JAX."""
    yield (
        "Loops of many carries, planned for an H100: a training step through a simulator, in loops "
        "in a loop, and a scan in which every carry reads the next one. Seconds are of the CPU, of "
        "all passes together. The exponent is that of `seconds = c * carries^e`."
    )
    yield ""
    columns = ["program", "budget", *(f"{count} carries, s" for count in CARRIES), "exponent"]
    yield from table(columns, _curve_cells(entry, fitted_exponent), names=2)
    if entry["beside_xla"]:
        yield ""
        yield (
            f"With {BESIDE_XLA} carries beside XLA, all attempts together, on the clock of the "
            "wall, one compile each:"
        )
        yield ""
        columns = ["program", "spec", "passes, s", "XLA, s", "share"]
        yield from table(columns, map(_xla_cells, entry["beside_xla"]), names=2)


def _curve_cells(
    entry: dict[str, Any], fitted_exponent: Callable[..., float]
) -> Iterator[list[str]]:
    for name, points in entry["curves"].items():
        sizes = [point["carries"] for point in points]
        for label in SPECS:
            seconds = [point["specs"][label]["cpu_s"] for point in points]
            exponent = f"{fitted_exponent(sizes, seconds):.2f}"
            cells = dict(zip(sizes, (f"{one:.2f}" for one in seconds), strict=True))
            yield [name, label, *(cells.get(count, "") for count in CARRIES), exponent]


def _xla_cells(row: dict[str, Any]) -> list[str]:
    share = row["pass_s"] / row["xla_compile_s"]
    times = [f"{row['pass_s']:.2f}", f"{row['xla_compile_s']:.2f}", f"{share * 100:.1f} %"]
    return [row["program"], f"`{row['spec']}`", *times]
