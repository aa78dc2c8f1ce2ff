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

import platform
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax

import hloom
from benchmarks.common.h100 import MEBI_BYTES, compile_recorded, placement
from benchmarks.common.subjects import SUBJECTS
from benchmarks.common.tables import Report, heading, table, update_report
from benchmarks.fills.filled import filled
from benchmarks.fills.models import MODELS, lower
from hloom._jax.executables import memory_figures

NAME = "fills_h100"
SCANNED = ("gpt_scanned", "llama", "mixture_of_experts", "lstm", "two_level_scan")
SPECS = ("off", "free-constants", "remat", "remat,uninitialized-stacks")


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    sharding = placement()
    jax.config.update("jax_enable_compilation_cache", False)
    programs = {
        SUBJECTS[name].title: partial(SUBJECTS[name].lower, None, sharding) for name in SCANNED
    } | {f"{name}, 8 layers": partial(lower, MODELS[name], sharding) for name in MODELS}
    rows: list[dict[str, Any]] = []
    entry = {"hloom": hloom.__version__, "python": platform.python_version(), "rows": rows}
    for title, lowered in programs.items():
        program = lowered()
        rows += [{"program": title} | measured(program, spec) for spec in SPECS]
        text = update_report(NAME, entry, markdown)
        print(rows[-1], flush=True)
    print(text)


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


def markdown(report: Report) -> Iterator[str]:
    """The results as tables."""
    yield from heading(
        "What a step fills",
        "fills",
        "XLA's schedule for an H100: what kernels write outside of loops, and inside as often as "
        "they run, that depends on no argument: stacks that scans overwrite, masks, zeros to "
        "scatter into. What is left with both passes is mostly the last. Step: arguments, results "
        "and temporaries; attempts are the compiles that were compared.",
    )
    for version, entry in report.items():
        yield from ["", f"## jax {version}", ""]
        columns = ["program", "spec", "filled, MiB", "kernels", "in loops, MiB"]
        yield from table(
            [*columns, "temporaries, MiB", "step, MiB", "attempts"],
            (
                [
                    row["program"],
                    f"`{row['spec']}`",
                    _mebi(row["at_entry_bytes"]),
                    str(row["kernels"]),
                    _mebi(row["in_loops_bytes"]),
                    _mebi(row["temp_bytes"]),
                    _mebi(row["step_bytes"]),
                    str(max(len(row["attempts"]), 1)),
                ]
                for row in entry["rows"]
            ),
            names=2,
        )


def _mebi(size_bytes: int) -> str:
    return f"{size_bytes / MEBI_BYTES:.1f}"


if __name__ == "__main__":
    main()
