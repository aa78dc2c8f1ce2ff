"""The figures of predicted frontiers as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.common.measure import (
    Benchmark,
    Columns,
    code,
    figure,
    mebi,
    section,
    table_of,
    text,
    titled,
)

POINTS, TIMED_BUDGETS = 10, 10
"""Points of a frontier that are compiled, and budgets whose estimate is timed."""


def _errors(program: dict[str, Any]) -> list[float]:
    return [
        abs(each["predicted_temp_bytes"] / each["temp_bytes"] - 1) for each in program["points"]
    ]


_SUMMARY: Columns = {
    "program": text("title"),
    "operations": text("operations"),
    "points": lambda row: str(len(row["points"])),
    "median error": lambda row: f"{statistics.median(_errors(row)):.1%}",
    "largest": lambda row: f"{max(_errors(row)):.1%}",
    "estimate, s": figure("estimate_cpu_s", ".2f"),
    "compile, s": figure("compile_cpu_s", ".2f"),
    "share": lambda row: f"{row['estimate_cpu_s'] / row['compile_cpu_s']:.0%}",
}
_POINTS: Columns = {
    "budget": code("spec"),
    "predicted, MiB": mebi("predicted_temp_bytes", 1),
    "XLA, MiB": mebi("temp_bytes", 1),
    "error": lambda row: f"{row['predicted_temp_bytes'] / row['temp_bytes'] - 1:+.1%}",
    "added, ms": figure("added_seconds", ".3f", 1e3),
}


def summary(entry: dict[str, Any]) -> list[str]:
    """A table of the programs that one version of JAX was measured with."""
    return table_of(_SUMMARY, titled(entry["programs"]))


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## jax {version}, Python {entry['python']}", "", *summary(entry))
    for name, program in entry["programs"].items():
        yield from section(f"### {name}", _POINTS, program["points"])


BENCHMARK = Benchmark(
    "budgets_h100",
    "budgets",
    "Predicted frontiers beside XLA",
    f"Up to {POINTS} points along each program's frontier, compiled for an H100: how far the "
    f"predicted temporary memory is from XLA's. The time is that of {TIMED_BUDGETS} budgets, "
    "in CPU seconds beside one compile of the program as it is, in one run.",
    _tables,
)
