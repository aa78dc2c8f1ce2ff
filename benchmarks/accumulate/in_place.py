"""Kernels a trip and exactness of gradients that are added up in products, and beside them.

    python -m benchmarks.accumulate.in_place     (needs the extra cuda13; no GPU; about 3 minutes)

Writes benchmarks/results/accumulate_in_place.json, which keeps one entry for each version of JAX it
was run with, and accumulate_in_place.md, the same as tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.extend.mlir.passmanager import PassManager

import hloom
from benchmarks.common.h100 import placement
from benchmarks.common.measure import Benchmark, Columns, code, figure, mebi, section, text, titled
from benchmarks.programs.gpt import Gpt
from hloom._jax.executables import memory_figures
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.xla import thunks
from hloom.xla.thunk_dump import find_sequences

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
_TOKENS = 64

INTERPRETED = {
    "one product, 64 x 16 x 24": product(64, 16, 24),
    "perceptron, 3 layers of 32": perceptron(16, 32),
    "GPT, 2 layers of 32": gpt(
        Gpt(False, batch=1, layers=2, width=32, heads=4, vocabulary=_TOKENS, sequence=16)
    ),
}


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    written = BENCHMARK.write(
        kernels={
            name: {spec: kernels(program, sharding, spec) for spec in SPECS}
            for name, program in ON_H100.items()
        },
        errors={name: errors(program) for name, program in INTERPRETED.items()},
    )
    print(written)


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
        sequence = thunks.parse_sequence(file.read_text("utf-8"))
    [loop] = [thunk for thunk in thunks.walk(sequence) if thunk.kind == "kWhile"]
    launched = [*_launched(loop)]
    return {
        "kernels": sum(thunk.kind not in _COPIES for thunk in launched),
        "copies": sum(thunk.kind in _COPIES for thunk in launched),
        "temp_bytes": memory_figures(compiled.runtime_executable()).temp_bytes or 0,
    }


def _launched(loop: thunks.Thunk) -> Iterator[thunks.Thunk]:
    """What runs each time round; a sliced copy is one."""
    for thunk in loop.children:
        if thunk.kind == "kSequential":
            yield from _launched(thunk)
        else:
            yield thunk


def errors(program: Program) -> dict[str, float]:
    """By spec, how far gradients are from those of the same step in float64, by the interpreter.

    The norm of the difference over the norm, of all leaves together, the mean over seeds.
    """
    function, shapes = program
    found: dict[str, list[float]] = {spec: [] for spec in SPECS}

    def narrowed(*arguments: Any) -> Any:
        def narrow(leaf: Any) -> Any:
            return leaf.astype("bfloat16") if leaf.dtype == "float32" else leaf

        return function(*jax.tree.map(narrow, arguments))

    for seed in range(SEEDS):
        arguments = _drawn(shapes, seed)
        with jax.enable_x64(True):
            exact = [np.asarray(leaf) for leaf in jax.tree.leaves(_in_float64(function, arguments))]
        lowered = jax.jit(narrowed).lower(*arguments)
        for spec in SPECS:
            module: ir.Module = clone_module(cast(ir.Module, lowered.compiler_ir()))
            Pipeline.parse(spec).run(module, target=Target(platform="cuda"))
            _round_once(module)
            got = _interpreted(module, jax.tree.leaves(arguments))
            error = sum(float(((a - b) ** 2).sum()) for a, b in zip(got, exact, strict=True))
            found[spec].append((error / sum(float((b**2).sum()) for b in exact)) ** 0.5)
    return {spec: float(np.mean(each)) for spec, each in found.items()}


def _in_float64(function: Callable[..., Any], arguments: Any) -> Any:
    def widen(leaf: Any) -> Any:
        return leaf.astype("float64") if leaf.dtype == "float32" else leaf

    return jax.jit(function)(*jax.tree.map(widen, arguments))


def _round_once(module: ir.Module) -> None:
    """Makes products add up in float32 and round then, as compilers do: the interpreter rounds each
    step to the result's type."""
    with module.context, ir.Location.unknown():
        for op in list(walk.operations(module.operation)):
            if op.name != "stablehlo.dot_general":
                continue
            [result] = op.results
            own = ir.RankedTensorType(result.type)
            with op.location, ir.InsertionPoint.after(op):
                rounded = stablehlo.ConvertOp(own, result)
            result.replace_all_uses_except(rounded.result, rounded.operation)
            result.set_type(ir.RankedTensorType.get(own.shape, ir.F32Type.get()))


def _interpreted(module: ir.Module, arguments: Sequence[Any]) -> list[Any]:
    """A module's results by StableHLO's interpreter, which knows no CHLO; edits the module."""
    stablehlo.register_stablehlo_passes()
    make: Any = ir.DenseElementsAttr.get
    with module.context, ir.Location.unknown():
        legalize = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
        PassManager.parse(legalize).run(module.operation)
        given = [make(np.ascontiguousarray(each)) for each in arguments]
        return [np.array(each, np.float64) for each in stablehlo.eval_module(module, given)]


def _drawn(shapes: Any, seed: int) -> Any:
    """Arguments with the values of their types, floating-point ones as float32."""
    draws = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> Any:
        if leaf.dtype == "int32":
            return draws.integers(0, _TOKENS, leaf.shape).astype("int32")
        drawn = draws.normal(size=leaf.shape) / leaf.shape[-1] ** 0.5
        return drawn.astype(leaf.dtype).astype("float32")

    return jax.tree.map(draw, shapes)


_KERNELS: Columns = {
    "H100": text("program"),
    "spec": code("spec"),
    "kernels a trip": text("kernels"),
    "copies": text("copies"),
    "temporaries, MiB": mebi("temp_bytes"),
}
_ERRORS: Columns = {
    "relative error": text("program"),
    **{f"`{spec}`": figure(spec, ".2e") for spec in SPECS},
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    rows = (
        row | {"program": name}
        for name, specs in entry["kernels"].items()
        for row in titled(specs, "spec")
    )
    yield from section(f"## jax {version}, Python {entry['python']}", _KERNELS, rows, names=2)
    yield from section("", _ERRORS, titled(entry["errors"], "program"))


_WHAT_IT_IS = f"""\
Gradients of {MICROBATCHES} microbatches, made in bfloat16 and added up in float32 in a `lax.scan`,
as users write it. Kernels are what XLA launches each time round, the loop's counter and its
condition with it; copies are those of slices. Errors are those of the whole gradient to the same
step in float64, the norm of the difference over the norm, mean of {SEEDS} seeds, by StableHLO's
interpreter, which rounds as types say; products add up in float32 and round once."""


BENCHMARK = Benchmark(
    "accumulate_in_place", "accumulate.in_place", "Sums in products", _WHAT_IT_IS, _tables
)


if __name__ == "__main__":
    main()
