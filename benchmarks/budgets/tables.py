"""The figures of predicted frontiers as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.common.h100 import MEBI_BYTES
from benchmarks.common.tables import Report, heading, table

POINTS, TIMED_BUDGETS = 10, 10
"""Points of a frontier that are compiled, and budgets whose estimate is timed."""


def _errors(program: dict[str, Any]) -> list[float]:
    return [
        abs(each["predicted_temp_bytes"] / each["temp_bytes"] - 1) for each in program["points"]
    ]


def summary(entry: dict[str, Any]) -> list[str]:
    """A table of the programs that one version of JAX was measured with."""
    columns = ["program", "operations", "points", "median error", "largest"]
    columns += ["estimate, s", "compile, s", "share"]
    rows = [
        [
            name,
            f"{program['operations']}",
            f"{len(program['points'])}",
            f"{statistics.median(_errors(program)):.1%}",
            f"{max(_errors(program)):.1%}",
            f"{program['estimate_cpu_s']:.2f}",
            f"{program['compile_cpu_s']:.2f}",
            f"{program['estimate_cpu_s'] / program['compile_cpu_s']:.0%}",
        ]
        for name, program in entry["programs"].items()
    ]
    return table(columns, rows)


def markdown(report: Report) -> Iterator[str]:
    """All that was measured, a section for each version of JAX."""
    yield from heading(
        "Predicted frontiers beside XLA",
        "budgets",
        f"Up to {POINTS} points along each program's frontier, compiled for an H100: how far the "
        f"predicted temporary memory is from XLA's. The time is that of {TIMED_BUDGETS} budgets, "
        "in CPU seconds beside one compile of the program as it is, in one run.",
    )
    for version, entry in report.items():
        yield ""
        yield f"## jax {version}, Python {entry['python']}"
        yield ""
        yield from summary(entry)
        for name, program in entry["programs"].items():
            yield ""
            yield f"### {name}"
            yield ""
            points = [
                [
                    f"`{each['spec']}`",
                    f"{each['predicted_temp_bytes'] / MEBI_BYTES:.1f}",
                    f"{each['temp_bytes'] / MEBI_BYTES:.1f}",
                    f"{each['predicted_temp_bytes'] / each['temp_bytes'] - 1:+.1%}",
                    f"{1e3 * each['added_seconds']:.3f}",
                ]
                for each in program["points"]
            ]
            yield from table(["budget", "predicted, MiB", "XLA, MiB", "error", "added, ms"], points)
