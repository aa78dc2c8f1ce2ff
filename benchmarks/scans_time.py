"""How `fit` and `remat` plan programs of many scans: part of `benchmarks.planning_time`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir

from benchmarks.common.h100 import TARGET
from benchmarks.common.tables import table
from benchmarks.programs.common import shaped
from hloom import targets
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.options import print_bytes
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module

SCANS = (30, 90, 270)
SPECS = ("fit{{budget={half}}}", "remat{{budget={half}}}")
WIDTH, ROWS, LAYERS = 256, 1024, 4


def _layer(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
    hidden = jax.nn.gelu(x @ kernel)
    return x + jnp.tanh(hidden) * jnp.sin(hidden), None


def _checkpointed(count: int) -> Any:
    """The gradient of scans one behind the other, their bodies under `jax.checkpoint`."""
    return _lowered(count, lambda x, kernel: jax.lax.scan(jax.checkpoint(_layer), x, kernel)[0])


def _plain(count: int) -> Any:
    """The same without checkpoints."""
    return _lowered(count, lambda x, kernel: jax.lax.scan(_layer, x, kernel)[0])


def _lowered(count: int, apply: Callable[[jax.Array, jax.Array], jax.Array]) -> Any:
    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = apply(x, kernel)
        return (x**2).mean()

    kernels = [shaped(LAYERS, WIDTH, WIDTH)] * count
    return jax.jit(jax.value_and_grad(loss)).lower(kernels, shaped(ROWS, WIDTH))


PROGRAMS: dict[str, Callable[[int], Any]] = {
    "scans of checkpointed layers": _checkpointed,
    "scans": _plain,
}


def measure() -> dict[str, Any]:
    """Times of one plan each, on the CPU's clock, by program and number of scans."""
    return {name: [_point(name, count) for count in SCANS] for name in PROGRAMS}


def _point(name: str, count: int) -> dict[str, Any]:
    print(f"planning: {count} {name}", flush=True)
    module = cast(ir.Module, PROGRAMS[name](count).compiler_ir())
    inlined = clone_module(module)
    Pipeline.parse("inline").run(inlined, target=targets.load(TARGET))
    with module.context:
        half = print_bytes(predict(inlined, rules=XLA_GPU).step_bytes // 2)
    found: dict[str, Any] = {
        "scans": count,
        "operations": sum(1 for _ in walk.operations(inlined.operation)),
        "specs": {},
    }
    for spec in SPECS:
        pipeline, clone = Pipeline.parse(spec.format(half=half)), clone_module(module)
        start_s = time.process_time()
        run = pipeline.run(clone, target=targets.load(TARGET)).runs[-1]
        found["specs"][run.name] = {
            "cpu_s": time.process_time() - start_s,
            "summary": run.summary,
        }
    return found


def markdown(entry: dict[str, Any], fitted_exponent: Callable[..., float]) -> Iterator[str]:
    """The table of one version of JAX."""
    yield (
        f"Scans of {LAYERS} layers one behind the other, planned for an H100 to half the step. "
        "Seconds are of the CPU, of all passes together, for one plan. The exponent is that of "
        "`seconds = c * scans^e`."
    )
    yield ""
    columns = ["program", "pass", *(f"{count} scans, s" for count in SCANS), "exponent"]
    yield from table(columns, _cells(entry, fitted_exponent), names=2)


def _cells(entry: dict[str, Any], fitted_exponent: Callable[..., float]) -> Iterator[list[str]]:
    for name, points in entry.items():
        sizes = [point["scans"] for point in points]
        for label in points[0]["specs"]:
            seconds = [point["specs"][label]["cpu_s"] for point in points]
            exponent = f"{fitted_exponent(sizes, seconds):.2f}"
            yield [name, f"`{label}`", *(f"{one:.2f}" for one in seconds), exponent]
