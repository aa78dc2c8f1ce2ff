"""What a step writes of zeros and masks before it computes, with and without the passes for it.

    python -m benchmarks.fills           (needs the extra cuda13; no GPU; about 6 minutes)

Programs are compiled for an H100: as they are, with `remat`, and with `remat` and
`uninitialized-stacks`. Read from XLA's schedule are the bytes that kernels write outside of loops
without reading any argument, and how many such kernels there are. Models of Flax, Haiku and Equinox
have a mask that is made outside of their scan, which `free-constants`, a part of `remat`, takes out
of the carries. Writes benchmarks/results/fills_h100.json, which keeps one entry for each version of
JAX it was run with, and fills_h100.md, the same as a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.common.h100 import compile_recorded, placement
from benchmarks.common.measure import Benchmark, Columns, code, mebi, section, text, without_cache
from benchmarks.common.subjects import SUBJECTS
from benchmarks.fills.filled import filled
from benchmarks.fills.models import MODELS, lower
from hloom._jax.executables import memory_figures

SCANNED = ("gpt_scanned", "llama", "mixture_of_experts", "lstm", "two_level_scan")
SPECS = ("off", "free-constants", "remat", "remat,uninitialized-stacks")


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    sharding = placement()
    without_cache()
    programs = {
        SUBJECTS[name].title: partial(SUBJECTS[name].lower, None, sharding) for name in SCANNED
    } | {f"{name}, 8 layers": partial(lower, MODELS[name], sharding) for name in MODELS}
    rows: list[dict[str, Any]] = []
    for title, lowered in programs.items():
        program = lowered()
        rows += [{"program": title} | measured(program, spec) for spec in SPECS]
        written = BENCHMARK.write(rows=rows)
        print(rows[-1], flush=True)
    print(written)


def measured(lowered: Any, spec: str) -> dict[str, Any]:
    """The row of a program with a spec."""
    compiled, record = compile_recorded(lowered, spec)
    figures = memory_figures(compiled.runtime_executable())
    found = filled(compiled.as_text())
    return {
        "spec": spec,
        "at_entry_bytes": found.at_entry_bytes,
        "in_loops_bytes": found.in_loops_bytes,
        "kernels": found.kernels,
        "temp_bytes": figures.temp_bytes,
        "step_bytes": figures.step_bytes,
        "attempts": [] if record is None else [each.step_bytes for each in record.attempts],
    }


_COLUMNS: Columns = {
    "program": text("program"),
    "spec": code("spec"),
    "filled, MiB": mebi("at_entry_bytes", 1),
    "kernels": text("kernels"),
    "in loops, MiB": mebi("in_loops_bytes", 1),
    "temporaries, MiB": mebi("temp_bytes", 1),
    "step, MiB": mebi("step_bytes", 1),
    "attempts": lambda row: str(max(len(row["attempts"]), 1)),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    return section(f"## jax {version}", _COLUMNS, entry["rows"], names=2)


BENCHMARK = Benchmark(
    "fills_h100",
    "fills",
    "What a step fills",
    "XLA's schedule for an H100: what kernels write outside of loops, and inside as often as "
    "they run, that depends on no argument: stacks that scans overwrite, masks, zeros to "
    "scatter into. What is left with both passes is mostly the last. Step: arguments, results "
    "and temporaries; attempts are the compiles that were compared.",
    _tables,
)


if __name__ == "__main__":
    main()
