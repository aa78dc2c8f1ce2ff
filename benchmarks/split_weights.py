"""A stage of a GPT whose gradients of weights are apart, compiled for an H100.

    python -m benchmarks.split_weights     (needs the extra cuda13; no GPU; about a minute)

The layers alone, as a stage in the middle of a pipeline has them: the matrix products of the
backward program and of the two in its place, what is held between these, and what XLA gives each.
Writes benchmarks/results/split_weights_h100.json, which keeps one entry for each version of JAX it
was run with, and split_weights_h100.md, the same as a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

import hloom
from benchmarks.common.h100 import placement
from benchmarks.common.measure import (
    Benchmark,
    Columns,
    figure,
    mebi,
    section,
    text,
    tree_bytes,
    without_cache,
)
from benchmarks.common.products import executed_products
from benchmarks.programs.gpt import Gpt
from hloom._jax.executables import memory_figures


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    without_cache()
    rows = [_row(scanned, sharding) for scanned in (False, True)]
    print(BENCHMARK.write(rows=rows))


def _row(scanned: bool, sharding: Any) -> dict[str, Any]:
    program = Gpt(scanned, layers=3, batch=1)
    layers = program.parameters(sharding)["layers"]
    shape = (program.batch, program.sequence, program.width)
    x = jax.ShapeDtypeStruct(shape, "bfloat16", sharding=sharding)
    fwd, bwd = hloom.split(program.stage, argnums=(0, 1))
    y, residuals = fwd.eval_shape(layers, x)
    whole = bwd.lower(residuals, y)
    fwd, bwd_x, bwd_w = hloom.split(program.stage, argnums=(0, 1), weights=(0,))
    y, residuals = fwd.eval_shape(layers, x)
    _, rest = bwd_x.eval_shape(residuals, y)
    found: dict[str, Any] = {"layers": "scanned" if scanned else "unrolled"}
    parts = {"whole": whole, "x": bwd_x.lower(residuals, y), "w": bwd_w.lower(rest)}
    for name, lowered in parts.items():
        figures = memory_figures(lowered.compile().runtime_executable())
        found |= {
            f"{name}_products": executed_products(lowered.compiler_ir()),
            f"{name}_temp": figures.temp_bytes,
            f"{name}_step": figures.step_bytes,
        }
    kept = tree_bytes([value for name, value in residuals.values.items() if name in rest.values])
    return found | {"residuals": residuals.nbytes, "kept": kept, "held": rest.nbytes}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        **_columns(),
        "temporaries of `bwd`": mebi("whole_temp", 1),
        "`bwd_x`": mebi("x_temp", 1),
        "`bwd_w`": mebi("w_temp", 1),
        "in all `bwd`": mebi("whole_step", 1),
        "in all `bwd_x`": mebi("x_step", 1),
        "in all `bwd_w`": mebi("w_step", 1),
    }
    return section(f"## jax {version}, Python {entry['python']}", columns, entry["rows"])


def _columns() -> Columns:
    return {
        "layers": text("layers"),
        "products of `bwd`": figure("whole_products", "d"),
        "of `bwd_x`": figure("x_products", "d"),
        "of `bwd_w`": figure("w_products", "d"),
        "residuals": mebi("residuals", 1),
        "of them still held after `bwd_x`": mebi("kept", 1),
        "held with what `bwd_x` made": mebi("held", 1),
    }


BENCHMARK = Benchmark(
    "split_weights_h100",
    "split_weights",
    "A stage of a GPT whose gradients of weights are apart, compiled for an H100",
    "3 layers, width 768, 8 heads, batch 1, sequence 1024, bfloat16, plain attention "
    "(`benchmarks/programs/gpt.py`), in MiB. *In all* is a program's arguments, results and "
    "temporaries. The figures are of a compile without a GPU: they hold for memory and not for "
    "speed.",
    _tables,
)


if __name__ == "__main__":
    main()
