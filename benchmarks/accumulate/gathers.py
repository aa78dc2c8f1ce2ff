"""Gradient accumulation under FSDP: parameters gathered, and gradients reduced, once or each time.

    python -m benchmarks.accumulate.gathers   (needs the extra cuda13; no GPU; about 15 minutes)

Writes benchmarks/results/accumulate_gathers_h100.json, which keeps one entry for each version of
JAX it was run with, and accumulate_gathers_h100.md, the same as tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.accumulate import steps
from benchmarks.common.collectives import collectives_of
from benchmarks.common.h100 import MEBI_BYTES, TARGET, compile_recorded
from benchmarks.common.measure import (
    Benchmark,
    code,
    mebi,
    section,
    text,
    tree_bytes,
    without_cache,
)
from hloom.targets import deviceless

DEVICES = 8

FORMS = {"unrolled": False, "scanned": True}

SPECS = (
    "off",
    "accumulate{microbatches=4 gather=each}",
    "accumulate{microbatches=4 gather=once reduce=each}",
    "accumulate{microbatches=4 gather=once reduce=once}",
    "accumulate{microbatches=4}",
    "accumulate{budget=60%}",
    "accumulate{budget=35%}",
)

_KINDS = ("all-gather", "reduce-scatter")


def main() -> None:
    """Compiles everything with the JAX that runs this, and writes the files."""
    deviceless.prepare()
    without_cache()
    mesh = deviceless.mesh(TARGET, DEVICES)
    found: dict[str, list[dict[str, Any]]] = {}
    for form, scanned in FORMS.items():
        rows = found.setdefault(form, [])
        for spec in SPECS:
            lowered = steps.lower_gradients(mesh, scanned=scanned)
            rows.append(_measured(lowered, spec))
            print(form, rows[-1], flush=True)
    parameters, _ = lowered.in_avals[0]
    print(BENCHMARK.write(parameter_bytes=tree_bytes(parameters), forms=found))


def _measured(lowered: Any, spec: str) -> dict[str, Any]:
    compiled, record = compile_recorded(lowered, spec)
    runs = () if record is None else record.runs
    row: dict[str, Any] = {
        "spec": spec,
        "effect": next((run.effect for run in runs if run.name == "accumulate"), ""),
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }
    sizes = dict.fromkeys((f"{kind}{in_}_bytes" for kind in _KINDS for in_ in ("", "_in_loops")), 0)
    for each in collectives_of(compiled.as_text()):
        if each.kind in _KINDS:
            sizes[f"{each.kind}{'_in_loops' if each.in_loop else ''}_bytes"] += (
                each.runs * each.result_bytes
            )
    return row | sizes


_COLUMNS = {
    "spec": code("spec"),
    "what it does": text("effect"),
    "temporaries, MiB": mebi("temp_bytes"),
    "gathered outside of loops, MiB": mebi("all-gather_bytes", 1),
    "in loops": mebi("all-gather_in_loops_bytes", 1),
    "reduce-scattered outside of loops, MiB": mebi("reduce-scatter_bytes", 1),
    "in loops ": mebi("reduce-scatter_in_loops_bytes", 1),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    size = entry["parameter_bytes"] / MEBI_BYTES
    yield from ("", f"## jax {version}, Python {entry['python']}")
    yield from ("", f"Parameters take {size:.0f} MiB.")
    for form, rows in entry["forms"].items():
        yield from section(f"### {form}, jax {version}", _COLUMNS, rows, names=2)


_WHAT_IT_IS = """\
The loss and the gradients of the benchmarks' GPT (`benchmarks/programs/gpt.py`) with 4 layers of
width 1024, bfloat16, parameters and batch sharded over 8 H100s, 8 examples of 512 tokens on each.
Temporaries are XLA's, on one device. What is gathered and reduce-scattered is counted in XLA's
optimized text, as often as it runs, with the bytes of its results on one device."""


BENCHMARK = Benchmark(
    "accumulate_gathers_h100",
    "accumulate.gathers",
    "Gradient accumulation of sharded parameters, H100",
    _WHAT_IT_IS,
    _tables,
)


if __name__ == "__main__":
    main()
