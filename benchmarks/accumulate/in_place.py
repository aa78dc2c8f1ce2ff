"""Kernels a trip and exactness of gradients that are added up in products, and beside them.

    python -m benchmarks.accumulate.in_place     (needs the extra cuda13; no GPU; about 3 minutes)

Writes benchmarks/results/accumulate_in_place.json, which keeps one entry for each version of JAX it
was run with, and accumulate_in_place.md, the same as tables.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hloom
from benchmarks.common.h100 import MEBI_BYTES, placement
from benchmarks.common.tables import Report, heading, table, update_report
from benchmarks.programs.gpt import Gpt
from hloom._jax.executables import memory_figures
from hloom.xla.thunk_dump import find_sequences
from hloom.xla.thunks import Thunk, parse_sequence, walk

MICROBATCHES = 8
SPECS = ("off", "accumulate-in-place")
SEEDS = 3

Program = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and the shapes of its arguments, the last one's first axis the microbatches."""

_COPIES = frozenset({"kCopy", "kDynamicSliceFusion", "kSequential"})


def product(rows: int, width: int, outputs: int) -> Program:
    """A sum of products, as of one layer's weight gradient, with nothing else in the loop."""

    def added(parts: tuple[jax.Array, jax.Array]) -> jax.Array:
        def body(total: jax.Array, operands: Any) -> tuple[jax.Array, None]:
            x, g = operands
            return total + (x.T @ g).astype("float32"), None

        return jax.lax.scan(body, jnp.zeros((width, outputs), "float32"), parts)[0]

    x, g = (_shaped(MICROBATCHES, rows, size) for size in (width, outputs))
    return added, ((x, g),)


def perceptron(rows: int, width: int, layers: int = 3) -> Program:
    """Gradients of a perceptron."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for layer in weights:
            x = jax.nn.gelu(x @ layer)
        return (x.astype(jnp.promote_types(x.dtype, "float32")) ** 2).mean()

    weights = [_shaped(width, width)] * layers
    return _accumulated(loss), (weights, _shaped(MICROBATCHES, rows, width))


def gpt(model: Gpt) -> Program:
    """Gradients of the benchmarks' GPT, its batch a microbatch."""
    tokens = jax.ShapeDtypeStruct((MICROBATCHES, *model.tokens().shape), "int32")
    return _accumulated(model.loss), (model.parameters(), tokens)


def _accumulated(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Its gradients in bfloat16 added up in float32 in a `lax.scan`, as users write it."""

    def gradients(parameters: Any, parts: Any) -> Any:
        def body(sums: Any, part: Any) -> tuple[Any, None]:
            found = jax.grad(loss)(parameters, part)
            return jax.tree.map(lambda one, other: one + other.astype(one.dtype), sums, found), None

        def start(leaf: jax.Array) -> jax.Array:
            return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, "float32"))

        return jax.lax.scan(body, jax.tree.map(start, parameters), parts)[0]

    return gradients


def _shaped(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "bfloat16")


ON_H100 = {
    "one product, 2048 x 1024 x 2048": product(2048, 1024, 2048),
    "perceptron, 3 layers of 2048": perceptron(2048, 2048),
    "GPT, 4 layers of 1024, unrolled": gpt(Gpt(scanned=False, batch=1, layers=4, width=1024)),
}
ON_CPU = {
    "one product, 64 x 32 x 48": product(64, 32, 48),
    "perceptron, 3 layers of 64": perceptron(32, 64),
    "GPT, 2 layers of 64": gpt(
        Gpt(False, batch=1, layers=2, width=64, heads=4, vocabulary=256, sequence=64)
    ),
}


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    entry = {
        "hloom": hloom.__version__,
        "python": platform.python_version(),
        "kernels": {
            name: {spec: kernels(program, sharding, spec) for spec in SPECS}
            for name, program in ON_H100.items()
        },
        "errors": {name: errors(program) for name, program in ON_CPU.items()},
    }
    print(update_report("accumulate_in_place", entry, _markdown))


def kernels(program: Program, sharding: Any, spec: str) -> dict[str, int]:
    """What a trip of the loop launches on an H100, with the loop's condition, and XLA's memory."""
    function, shapes = program
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes
    )
    jax.clear_caches()
    with tempfile.TemporaryDirectory(prefix="hloom-benchmark-") as folder, hloom.strict():
        options: dict[str, Any] = {"hloom": spec, "xla_dump_to": folder}
        compiled = jax.jit(function).lower(*placed).compile(compiler_options=options)
        # The step itself; others are programs that autotuning tried.
        file = max(find_sequences(Path(folder)), key=lambda each: each.stat().st_size)
        thunks = parse_sequence(file.read_text("utf-8"))
    [loop] = [thunk for thunk in walk(thunks) if thunk.kind == "kWhile"]
    launched = [*_launched(loop)]
    return {
        "kernels": sum(thunk.kind not in _COPIES for thunk in launched),
        "copies": sum(thunk.kind in _COPIES for thunk in launched),
        "temp_bytes": memory_figures(compiled.runtime_executable()).temp_bytes or 0,
    }


def _launched(loop: Thunk) -> Iterator[Thunk]:
    """What runs each time round; a sliced copy is one."""
    for thunk in loop.children:
        if thunk.kind == "kSequential":
            yield from _launched(thunk)
        else:
            yield thunk


def errors(program: Program) -> dict[str, float]:
    """By spec, how far gradients are from those of the same step in float64 on the CPU.

    The norm of the difference over the norm, of all leaves together, the mean over seeds.
    """
    function, shapes = program
    found: dict[str, list[float]] = {spec: [] for spec in SPECS}
    for seed in range(SEEDS):
        arguments = _drawn(shapes, seed)
        with jax.enable_x64(True):
            wide = jax.tree.map(
                lambda leaf: leaf if leaf.dtype == "int32" else np.asarray(leaf, np.float64),
                arguments,
            )
            exact = jax.tree.leaves(jax.tree.map(np.asarray, jax.jit(function)(*wide)))
        for spec in SPECS:
            # XLA for CPUs computes in float32, and would leave the rounding of results out.
            options: dict[str, Any] = {"hloom": spec, "xla_allow_excess_precision": False}
            with hloom.strict():
                compiled = jax.jit(function).lower(*arguments).compile(compiler_options=options)
            got = jax.tree.leaves(compiled(*arguments))
            pairs = [(np.asarray(a, np.float64), b) for a, b in zip(got, exact, strict=True)]
            error = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
            found[spec].append((error / sum(float((b**2).sum()) for _, b in pairs)) ** 0.5)
    return {spec: float(np.mean(each)) for spec, each in found.items()}


def _drawn(shapes: Any, seed: int) -> Any:
    draws = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> Any:
        if leaf.dtype == "int32":
            return draws.integers(0, 256, leaf.shape).astype("int32")
        return (draws.normal(size=leaf.shape) / leaf.shape[-1] ** 0.5).astype(leaf.dtype)

    return jax.tree.map(draw, shapes)


def _markdown(report: Report) -> Iterator[str]:
    yield from heading("Sums in products", "accumulate.in_place", _WHAT_IT_IS)
    for version, entry in report.items():
        yield from ("", f"## jax {version}, Python {entry['python']}", "")
        columns = ["H100", "spec", "kernels a trip", "copies", "temporaries, MiB"]
        rows = (
            [name, f"`{spec}`", *map(str, (one["kernels"], one["copies"])), _mebi(one)]
            for name, specs in entry["kernels"].items()
            for spec, one in specs.items()
        )
        yield from table(columns, rows, names=2)
        yield ""
        columns = ["relative error, CPU", *(f"`{spec}`" for spec in SPECS)]
        figures = (
            [name, *(f"{one[spec]:.2e}" for spec in SPECS)] for name, one in entry["errors"].items()
        )
        yield from table(columns, figures)


def _mebi(found: dict[str, int]) -> str:
    return f"{found['temp_bytes'] / MEBI_BYTES:.0f}"


_WHAT_IT_IS = f"""\
Gradients of {MICROBATCHES} microbatches, made in bfloat16 and added up in float32 in a `lax.scan`,
as users write it. Kernels are what XLA launches each time round, the loop's counter and its
condition with it; copies are those of slices. Errors are those of the whole gradient to the same
step in float64, the norm of the difference over the norm, mean of {SEEDS} seeds, compiled for the
CPU with `xla_allow_excess_precision=False`: without it XLA's CPU compiler, which computes products
of bfloat16 in float32, leaves the rounding out by itself."""


if __name__ == "__main__":
    main()
