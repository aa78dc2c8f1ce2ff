"""What `remat` does to a GPT compiled for an H100, beside `jax.checkpoint`.

    python -m benchmarks.remat_cheap          (needs the extra cuda13; no GPU; about 3 minutes)

Writes benchmarks/results/remat_cheap_h100.json, which keeps one entry for each version of JAX it
was run with, and remat_cheap_h100.md, the same as tables.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

import jax

from benchmarks.common.h100 import Measurement, measure, measure_times, placement
from benchmarks.common.measure import Benchmark, Cell, Columns, figure, mebi, section, text
from benchmarks.programs.gpt import POLICIES, Gpt

SPEC = "remat"
REPEATS = 3
"""Compiles that are timed; the times are their medians."""

MODELS = {
    "softmax in float32": Gpt(scanned=False),
    "softmax in bfloat16, norms with gains": Gpt(
        scanned=False, softmax_dtype="bfloat16", gains=True
    ),
}


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    # The first spec of a process imports the passes; that is not what a pass costs.
    scalar = jax.ShapeDtypeStruct((), "float32", sharding=sharding)
    measure_times(jax.jit(lambda x: x + 1).lower(scalar), SPEC)
    rows = [
        _row(name, dataclasses.replace(model, scanned=scanned), sharding)
        for name, model in MODELS.items()
        for scanned in (False, True)
    ]
    print(BENCHMARK.write(spec=SPEC, programs=rows))


def _row(name: str, model: Gpt, sharding: Any) -> dict[str, Any]:
    form = "scanned" if model.scanned else "unrolled"
    print(f"measuring: layers {form}, {name}", flush=True)
    lowered = model.lower(sharding)
    before, after = measure(lowered, "off"), measure(lowered, SPEC)
    times = [measure_times(lowered, SPEC) for _ in range(REPEATS)]
    checkpointed = {
        policy: measure(dataclasses.replace(model, policy=policy).lower(sharding), "off")
        for policy in POLICIES
    }
    pass_s = statistics.median(one.pass_s for one in times)
    xla_compile_s = statistics.median(one.xla_compile_s for one in times)
    return {
        "layers": form,
        "model": name,
        "sizes": dataclasses.asdict(model),
        "off": _memory_and_products(before),
        "on": _memory_and_products(after),
        "checkpoint": {name: _memory_and_products(one) for name, one in checkpointed.items()},
        "pass_s": pass_s,
        "xla_compile_s": xla_compile_s,
        "pass_share": pass_s / xla_compile_s,
        "summaries": after.summaries,
    }


def _memory_and_products(one: Measurement) -> dict[str, int]:
    return {"temp_bytes": one.temp_bytes, "products": one.products}


def _cell(*keys: str) -> Cell:
    """Memory, and in brackets the products."""
    size, products = mebi((*keys, "temp_bytes")), text((*keys, "products"))
    return lambda row: f"{size(row)} ({products(row)})"


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        "layers": text("layers"),
        "model": text("model"),
        "no checkpoint": _cell("off"),
        f"`{entry['spec']}`": lambda row: f"**{_cell('on')(row)}**",
        **{f"`jax.checkpoint`, {policy}": _cell("checkpoint", policy) for policy in POLICIES},
        "passes, s": figure("pass_s", ".3f"),
        "XLA, s": figure("xla_compile_s", ".2f"),
        "share": lambda row: f"{row['pass_share'] * 100:.1f} %",
    }
    title = f"## jax {version}, Python {entry['python']}, `{entry['spec']}`"
    return section(title, columns, entry["programs"], names=2)


BENCHMARK = Benchmark(
    "remat_cheap_h100",
    "remat_cheap",
    "`remat` on a GPT compiled for an H100",
    "`value_and_grad` of the loss of a GPT: 12 layers, width 768, 8 heads, vocabulary 8192, "
    "batch 8, sequence 1024, bfloat16, plain attention (`benchmarks/programs/gpt.py`). XLA's "
    "temporary memory in MiB, and in brackets the matrix products that run, loops included. "
    "The figures are of a compile without a GPU, so they hold for memory and not for speed. "
    f"Times are medians of {REPEATS} compiles; they depend on the machine.",
    _tables,
)


if __name__ == "__main__":
    main()
