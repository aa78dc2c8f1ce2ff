"""Attention by a kernel of cuDNN under budgets: where it is done again, and where it is kept.

    python -m benchmarks.kernels          (needs the extra cuda13; no GPU; about 5 minutes)

Compiles a decoder for an H100. Writes benchmarks/results/kernels_h100.json, which keeps one entry
for each version of JAX it was run with, and kernels_h100.md, the same as a table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common.h100 import compile_recorded, placement
from benchmarks.common.measure import Benchmark, Columns, code, mebi, section, text, without_cache
from hloom._jax.executables import memory_figures

SEQUENCES, POSITIONS, HEADS, WIDTH, LAYERS = 4, 1024, 8, 64, 6
FEATURES = HEADS * WIDTH

SPECS = ("off", "remat{budget=400MiB}", "remat{budget=270MiB}", "remat{budget=210MiB}")

KERNEL = 'custom_call_target="__cudnn$fmhaSoftmax"'
"""How XLA's text calls attention, and not its gradient."""


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    sharding = placement()
    without_cache()
    rows: list[dict[str, Any]] = []
    for scanned in (True, False):
        lowered = lower(sharding, scanned=scanned)
        for spec in SPECS:
            compiled, _ = compile_recorded(lowered, spec)
            figures = memory_figures(compiled.runtime_executable())
            calls = compiled.as_text().count(KERNEL)
            rows.append(
                {
                    "layers": "scanned" if scanned else "unrolled",
                    "spec": spec,
                    "temp_bytes": figures.temp_bytes,
                    "step_bytes": figures.step_bytes,
                    "kernels": calls * LAYERS if scanned else calls,
                }
            )
            print(rows[-1], flush=True)
    print(BENCHMARK.write(rows=rows))


def lower(sharding: Any, *, scanned: bool) -> Any:
    """The gradient of the decoder's loss."""

    def of(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=sharding)

    square, wide = of(LAYERS, FEATURES, FEATURES), of(LAYERS, FEATURES, 4 * FEATURES)
    parameters = dict.fromkeys(("query", "key", "value", "out"), square)
    parameters |= {"up": wide, "down": of(LAYERS, 4 * FEATURES, FEATURES)}
    step = jax.jit(jax.grad(functools.partial(_loss, scanned)))
    return step.lower(parameters, of(SEQUENCES, POSITIONS, FEATURES))


def _loss(scanned: bool, parameters: Any, x: jax.Array) -> jax.Array:
    if scanned:
        x, _ = jax.lax.scan(lambda x, layer: (_layer(layer, x), None), x, parameters)
    else:
        for number in range(LAYERS):
            x = _layer(jax.tree.map(itemgetter(number), parameters), x)
    return jnp.mean(x.astype("float32") ** 2)


def _layer(parameters: Any, x: jax.Array) -> jax.Array:
    scale = jax.lax.rsqrt(jnp.mean(x.astype("float32") ** 2, -1, keepdims=True) + 1e-6)
    normed = x * scale.astype(x.dtype)
    query, key, value = (
        (normed @ parameters[name]).reshape(SEQUENCES, POSITIONS, HEADS, WIDTH)
        for name in ("query", "key", "value")
    )
    heads = jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")
    x = x + heads.reshape(x.shape) @ parameters["out"]
    return x + jax.nn.gelu(x @ parameters["up"]) @ parameters["down"]


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        "layers": text("layers"),
        "spec": code("spec"),
        "step, MiB": mebi("step_bytes"),
        "temporaries, MiB": mebi("temp_bytes"),
        "attention's kernel runs": text("kernels"),
    }
    return section(f"## jax {version}", columns, entry["rows"], names=2)


BENCHMARK = Benchmark(
    "kernels_h100",
    "kernels",
    "A kernel under budgets",
    f"The gradient of a decoder of {LAYERS} layers, width {FEATURES}, {HEADS} heads, batch "
    f"{SEQUENCES}, sequence {POSITIONS}, bfloat16, whose attention is cuDNN's "
    "(`jax.nn.dot_product_attention`), compiled for an H100 without one. A budget is of the step; "
    "the kernel of the forward pass runs once a layer where it is not done again.",
    _tables,
)


if __name__ == "__main__":
    main()
