"""Ragged products by XLA alone and by the pass `ragged`: on this CPU, and compiled for an H100.

    python -m benchmarks.ragged        (needs the extra cuda13; no GPU; some minutes, most of them
                                        for XLA's own products on the CPU)

Writes benchmarks/results/ragged.json, which keeps one entry for each version of JAX it was run
with, and ragged.md, the same as tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.capture import measure_captured
from benchmarks.common.flops import executed_flops
from benchmarks.common.h100 import TARGET, compile_recorded, placement
from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text, titled
from benchmarks.ragged import example
from benchmarks.ragged.example import train_example
from benchmarks.ragged.layer import (
    layer_arguments,
    layer_gradient,
    product_arguments,
    product_gradients,
)
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless

SPEC = "ragged"
EXPERTS = (8, 16, 64)
TOKENS, WIDTH, HIDDEN = 4096, 256, 1024  # of the layer on the CPU
H100_SIZES = (8192, 1024, 2048)  # rows, and the sides of an expert's matrix
RUNS = 3


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    deviceless.prepare()
    written = BENCHMARK.write(
        cpu={str(experts): _on_cpu(experts) for experts in EXPERTS},
        example=train_example(),
        h100={str(experts): _for_h100(experts) for experts in EXPERTS},
    )
    print(written)


def _on_cpu(experts: int) -> dict[str, Any]:
    arguments = layer_arguments(experts, TOKENS, WIDTH, HIDDEN)
    lowered = jax.jit(layer_gradient).lower(*arguments)
    ways = {spec: lowered.compile(compiler_options={"hloom": spec}) for spec in ("off", SPEC)}
    results = {spec: jax.tree.leaves(way(*arguments)) for spec, way in ways.items()}
    seconds: dict[str, list[float]] = {spec: [] for spec in ways}
    for _ in range(RUNS):
        for spec, way in ways.items():
            start_s = time.perf_counter()
            jax.block_until_ready(way(*arguments))
            seconds[spec].append(time.perf_counter() - start_s)
    found: dict[str, Any] = {
        spec: {"seconds": statistics.median(each), "temp_bytes": _temp_bytes(ways[spec])}
        for spec, each in seconds.items()
    }
    found["largest_difference"] = max(
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(results[SPEC], results["off"], strict=True)
    )
    found |= _work(lowered, Target())
    print("CPU", experts, found, flush=True)
    return found


def _temp_bytes(compiled: Any) -> int:
    return int(compiled.memory_analysis().temp_size_in_bytes)


def _for_h100(experts: int) -> dict[str, Any]:
    arguments = product_arguments(experts, *H100_SIZES, placement())
    lowered = jax.jit(product_gradients).lower(*arguments)
    found: dict[str, Any] = {}
    for spec in ("off", SPEC):
        memory = compile_recorded(lowered, spec)[0].memory_analysis()
        found[spec] = {
            "temp_bytes": memory.temp_size_in_bytes,
            "result_bytes": memory.output_size_in_bytes,
        }
    graphs = measure_captured(lowered, f"{SPEC},capture{{loops=on}}").to_json()
    found["graphs"] = {name: graphs[name] for name in ("captured", "thunks", "graphs")}
    found |= _work(lowered, targets.load(TARGET))
    print("H100", experts, found, flush=True)
    return found


def _work(lowered: Any, target: Target) -> dict[str, Any]:
    """What the loops compute, beside what is needed."""
    module = clone_module(lowered.compiler_ir())
    plan = Pipeline.parse(SPEC).run(module, target=target).runs[-1].plan
    loops = rows_of(plan, "Ragged products in loops")
    return {
        "products": len(loops),
        "tile_rows": sorted({loop["rows of a tile"] for loop in loops}),
        "tiles": sum(loop["tiles"] for loop in loops),
        "executed_flops": executed_flops(module).products,
        "rows": loops[0]["rows"],
        "work": max(loop["tiles"] * loop["rows of a tile"] / loop["rows"] for loop in loops),
        "bound": max(1 + loop["groups"] * loop["rows of a tile"] / loop["rows"] for loop in loops),
    }


def _tile_rows(row: dict[str, Any]) -> str:
    return ", ".join(map(str, row["tile_rows"]))


_CPU: Columns = {
    "experts": text("experts"),
    "XLA alone, ms": figure(("off", "seconds"), ".0f", 1e3),
    "`ragged`, ms": figure((SPEC, "seconds"), ".0f", 1e3),
    "times faster": lambda row: f"{row['off']['seconds'] / row[SPEC]['seconds']:.1f}",
    "XLA alone, MiB": mebi(("off", "temp_bytes")),
    "`ragged`, MiB": mebi((SPEC, "temp_bytes")),
    "rows of a tile": _tile_rows,
    "work / needed": figure("work", ".2f"),
    "largest difference": figure("largest_difference", ".0e"),
}
_EXAMPLE: Columns = {
    "way": text("way"),
    "ms a step": figure("step_ms", ".0f"),
    "loss of step 1": figure(("losses", 0), ".5f"),
    "10": figure(("losses", 9), ".5f"),
    "20": figure(("losses", 19), ".5f"),
}
_H100: Columns = {
    "experts": text("experts"),
    "XLA alone, MiB": mebi(("off", "temp_bytes")),
    "`ragged`, MiB": mebi((SPEC, "temp_bytes")),
    "results, MiB": mebi((SPEC, "result_bytes")),
    "rows of a tile": _tile_rows,
    "work / needed": figure("work", ".2f"),
    "at most": figure("bound", ".2f"),
    "in graphs": lambda row: f"{row['graphs']['captured']} of {row['graphs']['thunks']}",
    "graphs": text(("graphs", "graphs")),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = f"## The layer on a CPU, jax {version}, Python {entry['python']}"
    yield from section(title, _CPU, titled(entry["cpu"], "experts"))
    title = f"## `examples/mixture_of_experts.py`, jax {version}"
    yield from section(title, _EXAMPLE, titled(entry["example"], "way"))
    title = f"## Both gradients of a product, compiled for an H100, jax {version}"
    yield from section(title, _H100, titled(entry["h100"], "experts"))


_WHAT_IT_IS = f"""\
A mixture-of-experts layer of {TOKENS} tokens, width {WIDTH} and hidden width {HIDDEN} in float32
(`benchmarks/ragged/layer.py`: the best expert of each token, sorted, two ragged products), its
gradients, on a CPU: medians of {RUNS} runs of both in turns, so that the ratio holds for this run
alone; temporaries by XLA; the largest difference of a gradient, relative to its largest element.
Work is what the loops multiply beside what is needed, in the product where that is most; a loop
always does as many tiles as any sizes of groups could need.

The example trains {example.DEVICES * example.EXPERTS} experts on {example.DEVICES} virtual
devices, with `jax.lax.ragged_all_to_all` between them.

Then both gradients of a product by itself, {H100_SIZES[0]} rows and matrices of {H100_SIZES[1]} x
{H100_SIZES[2]} in bfloat16, compiled for an H100: temporaries by XLA, what its results take, and
what runs in CUDA graphs with `{SPEC},capture`."""


BENCHMARK = Benchmark("ragged", "ragged", "Ragged products", _WHAT_IT_IS, _tables)


if __name__ == "__main__":
    main()
