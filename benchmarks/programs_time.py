"""How long `fit` plans the frontier's programs beside XLA: part of `benchmarks.planning_time`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.h100 import TARGET, placement
from benchmarks.common.measure import import_planning
from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS
from benchmarks.common.tables import table
from benchmarks.frontier.compiles import Compiles
from hloom import targets
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.options import print_bytes
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module

PROGRAMS = {**SUBJECTS, **HARD_SUBJECTS}

SHARE = 2
"""The budget is this part of the step as it is predicted to be without one."""


def measure(programs: Collection[str] = PROGRAMS) -> Iterator[dict[str, Any]]:
    """Of each program, CPU seconds of the passes and of XLA for all compiles of one budget."""
    import_planning()
    sharding = placement()
    with tempfile.TemporaryDirectory() as folder:
        compiles = Compiles(sharding, Path(folder) / "figures.json")  # nothing is known before
        for name in programs:
            print(f"compiling: {name}", flush=True)
            module = PROGRAMS[name].lower(None, sharding).compiler_ir()
            inlined = clone_module(module)
            Pipeline.parse("inline").run(inlined, target=targets.load(TARGET))
            with module.context:
                size = predict(inlined, rules=XLA_GPU).step_bytes // SHARE
            point = compiles.under(module, f"fit{{budget={print_bytes(size)}}}", size)
            yield {
                "program": name,
                "compiles": len(point.predictions),
                "planning_cpu_s": point.planning_cpu_s,
                "compile_cpu_s": point.compile_cpu_s,
            }


def replaced(
    before: Sequence[Mapping[str, Any]], row: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The rows with one in the place of what was measured of its program before."""
    known = {each["program"]: each for each in (*before, row)}
    return [known[name] for name in PROGRAMS if name in known]


def markdown(entry: list[Mapping[str, Any]]) -> Iterator[str]:
    """The table of one version of JAX."""
    shares = [row["planning_cpu_s"] / row["compile_cpu_s"] for row in entry]
    yield (
        "The programs of the frontier, planned and compiled for an H100 to half the step. Seconds "
        "are of the CPU, of all passes and of all compiles for the budget, without the imports of "
        "a process's first plan, SciPy and the passes. Planning takes "
        f"{statistics.median(shares):.1%} of XLA's time in the median of {len(shares)} programs, "
        f"{max(shares):.1%} at most."
    )
    yield ""
    rows = [
        [
            PROGRAMS[row["program"]].title,
            str(row["compiles"]),
            f"{row['planning_cpu_s']:.2f}",
            f"{row['compile_cpu_s']:.2f}",
            f"{share:.1%}",
        ]
        for row, share in zip(entry, shares, strict=True)
    ]
    yield from table(["program", "compiles", "passes, s", "XLA, s", "share"], rows)
