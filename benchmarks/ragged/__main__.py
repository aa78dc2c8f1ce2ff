"""Ragged products by XLA alone and by the pass `ragged`: on this CPU, and compiled for an H100.

    python -m benchmarks.ragged        (needs the extra cuda13; no GPU; some minutes, most of them
                                        for XLA's own products on the CPU)

Writes benchmarks/results/ragged.json, which keeps one entry for each version of JAX it was run
with, and ragged.md, the same as tables.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import hloom
from benchmarks.capture import measure_captured
from benchmarks.common.flops import executed_flops
from benchmarks.common.h100 import MEBI_BYTES, TARGET, compile_recorded, placement
from benchmarks.common.tables import Report, heading, table, update_report
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
    entry = {
        "hloom": hloom.__version__,
        "python": platform.python_version(),
        "cpu": {str(experts): _on_cpu(experts) for experts in EXPERTS},
        "example": train_example(),
        "h100": {str(experts): _for_h100(experts) for experts in EXPERTS},
    }
    print(update_report("ragged", entry, _markdown))


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
    graphs = measure_captured(lowered, f"{SPEC},capture").to_json()
    found["graphs"] = {name: graphs[name] for name in ("captured", "thunks", "graphs")}
    found |= _work(lowered, targets.load(TARGET))
    print("H100", experts, found, flush=True)
    return found


def _work(lowered: Any, target: Target) -> dict[str, Any]:
    """What the loops compute, beside what is needed."""
    module = clone_module(lowered.compiler_ir())
    plan = Pipeline.parse(SPEC).run(module, target=target).runs[-1].plan
    loops = plan["loops"]
    assert isinstance(loops, list)
    return {
        "products": len(loops),
        "tile_rows": sorted({loop["tile_rows"] for loop in loops}),
        "tiles": sum(loop["tiles"] for loop in loops),
        "executed_flops": executed_flops(module).products,
        "rows": loops[0]["rows"],
        "work": max(loop["tiles"] * loop["tile_rows"] / loop["rows"] for loop in loops),
        "bound": max(1 + loop["groups"] * loop["tile_rows"] / loop["rows"] for loop in loops),
    }


def _markdown(report: Report) -> Iterator[str]:
    yield from heading("Ragged products", "ragged", _WHAT_IT_IS)
    for version, entry in report.items():
        yield ""
        yield f"## The layer on a CPU, jax {version}, Python {entry['python']}"
        yield ""
        yield from table(_CPU, (_cpu_cells(*each) for each in entry["cpu"].items()))
        yield ""
        yield f"## `examples/mixture_of_experts.py`, jax {version}"
        yield ""
        yield from table(_EXAMPLE, (_example_cells(*each) for each in entry["example"].items()))
        yield ""
        yield f"## Both gradients of a product, compiled for an H100, jax {version}"
        yield ""
        yield from table(_H100, (_h100_cells(*each) for each in entry["h100"].items()))


_CPU = [
    "experts",
    "XLA alone, ms",
    "`ragged`, ms",
    "times faster",
    "XLA alone, MiB",
    "`ragged`, MiB",
    "rows of a tile",
    "work / needed",
    "largest difference",
]
_EXAMPLE = ["way", "ms a step", "loss of step 1", "10", "20"]
_H100 = [
    "experts",
    "XLA alone, MiB",
    "`ragged`, MiB",
    "results, MiB",
    "rows of a tile",
    "work / needed",
    "at most",
    "in graphs",
    "graphs",
]


def _cpu_cells(experts: str, found: dict[str, Any]) -> list[str]:
    off, on = found["off"], found[SPEC]
    return [
        experts,
        f"{off['seconds'] * 1e3:.0f}",
        f"{on['seconds'] * 1e3:.0f}",
        f"{off['seconds'] / on['seconds']:.1f}",
        f"{off['temp_bytes'] / MEBI_BYTES:.0f}",
        f"{on['temp_bytes'] / MEBI_BYTES:.0f}",
        ", ".join(map(str, found["tile_rows"])),
        f"{found['work']:.2f}",
        f"{found['largest_difference']:.0e}",
    ]


def _example_cells(way: str, found: dict[str, Any]) -> list[str]:
    losses = (f"{found['losses'][step - 1]:.5f}" for step in (1, 10, 20))
    return [way, f"{found['step_ms']:.0f}", *losses]


def _h100_cells(experts: str, found: dict[str, Any]) -> list[str]:
    graphs = found["graphs"]
    return [
        experts,
        f"{found['off']['temp_bytes'] / MEBI_BYTES:.0f}",
        f"{found[SPEC]['temp_bytes'] / MEBI_BYTES:.0f}",
        f"{found[SPEC]['result_bytes'] / MEBI_BYTES:.0f}",
        ", ".join(map(str, found["tile_rows"])),
        f"{found['work']:.2f}",
        f"{found['bound']:.2f}",
        f"{graphs['captured']} of {graphs['thunks']}",
        str(graphs["graphs"]),
    ]


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


if __name__ == "__main__":
    main()
