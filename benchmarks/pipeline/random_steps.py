"""Random scanned steps as pipelines, beside the same steps on one device.

    python -m benchmarks.pipeline.random_steps FIRST END   (8 virtual CPU devices; 2 s each)

Steps are drawn by their numbers, from FIRST to END - 1 (`benchmarks/pipeline/random_programs.py`).
Writes benchmarks/results/pipeline_random.json, which keeps one entry for each version of JAX it was
run with, and pipeline_random.md, the same as tables.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

import hloom
from benchmarks.common.measure import Benchmark, figure, section, text
from benchmarks.pipeline.values import (
    DEVICES,
    MOST_OFF,
    QUICK,
    compared,
    random_case,
    shown_mesh,
    without_places,
)


def main() -> None:
    """Runs the steps with the JAX that runs this, and writes the files after each of them."""
    found = {int(at): row for at, row in BENCHMARK.before().get("steps", {}).items()}
    for number in range(*map(int, sys.argv[1:3])):
        case = random_case(number)
        row: dict[str, Any] = {"mesh": shown_mesh(case.sizes), "off": None, "refusal": ""}
        try:
            row["off"], _ = compared(case)
            if row["off"] > MOST_OFF:
                row["alone"], _ = compared(dataclasses.replace(case, spec="off"))
        except hloom.PassError as error:
            row["refusal"] = without_places(error.reason)
        found[number] = row
        print(number, case.spec, case.name, row, flush=True)
        BENCHMARK.write(steps=dict(sorted(found.items())))
        jax.clear_caches()
    sys.exit(any((row["off"] or 0.0) > MOST_OFF + row.get("alone", 0.0) for row in found.values()))


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## jax {version}, Python {entry['python']}")
    steps = list(entry["steps"].values())
    counts = Counter(row["mesh"] for row in steps)
    rows = []
    for mesh, count in sorted(counts.items()):
        of = [row for row in steps if row["mesh"] == mesh]
        offs = [row["off"] for row in of if row["off"] is not None]
        refused = sum(bool(row["refusal"]) for row in of)
        rows.append({"mesh": mesh, "steps": count, "refused": refused, "off": max(offs)})
    columns = {
        "mesh": text("mesh"),
        "steps": figure("steps", "d"),
        "refused": figure("refused", "d"),
        "off by at most": figure("off", ".1e"),
    }
    yield from section("", columns, rows)
    far = [
        {"step": int(number), **row}
        for number, row in entry["steps"].items()
        if (row["off"] or 0.0) > MOST_OFF
    ]
    columns = {
        "step": figure("step", "d"),
        "mesh": text("mesh"),
        "off by": figure("off", ".1e"),
        "the same mesh without hloom": figure("alone", ".1e"),
    }
    yield from section("Those that are off by most", columns, far)


_WHAT_IT_IS = """\
Random steps over scanned layers, float32, on virtual CPU devices, as pipelines and on one device
without hloom. Meshes, microbatches and repeats are drawn, too. "Off by" is the largest difference
of a result, relative to that result's largest element. Where it is more than 2e-6, it
stands beside that of the same mesh without hloom."""


BENCHMARK = Benchmark(
    "pipeline_random",
    "pipeline.random_steps",
    "Random steps as pipelines",
    _WHAT_IT_IS,
    _tables,
)


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES} {QUICK}"
    main()
