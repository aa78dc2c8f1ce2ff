"""What `split-loop` gains under budgets between the steps of a scan, and what it costs.

    python -m benchmarks.split_loop           (needs the extra cuda13; no GPU; about 10 minutes)

A scanned GPT is compiled for an H100: as it is, split alone, and for each budget whole and split
where `choose_split` says. A smaller one is compiled with plans forced on its parts, which shows
which part should keep more. Writes benchmarks/results/split_loop_h100.json, which keeps one entry
for each version of JAX it was run with, and split_loop_h100.md, the same as tables.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.mlir import ir

import hloom
from benchmarks.common.h100 import MEBI_BYTES, TARGET, Measurement, measure, placement
from benchmarks.common.tables import Report, table, update_report
from benchmarks.programs.gpt import Gpt
from benchmarks.split_loop.forced import ForcePrices
from hloom import targets
from hloom.passes.framework import registry
from hloom.passes.framework.options import Budget, Bytes, Cuts
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.model import Model
from hloom.passes.planner.moves_search import uniform_plans
from hloom.passes.remat import Remat
from hloom.passes.split_loop import SplitLoop
from hloom.passes.split_loop.choice import SplitChoice, choose_split
from hloom.passes.split_loop.groups import splittable

NAME = "split_loop_h100"
GPT = Gpt(scanned=True)
SMALL = Gpt(scanned=True, layers=6, width=256, heads=4, sequence=512, vocabulary=512)
BUDGETS_MEBI = (1500, 1800, 2100, 2700, 3000, 3400, 5000)

LESS, MORE = 18, 21
"""Two prices at which the plans of `SMALL` differ most."""


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    sharding = placement()
    jax.config.update("jax_enable_compilation_cache", False)
    gpt, small = GPT.lower(sharding), SMALL.lower(sharding)
    as_it_is, row = _compiled(gpt, "off")
    print(row, flush=True)
    entry: dict[str, Any] = {
        "hloom": hloom.__version__,
        "python": platform.python_version(),
        "alone": [row, *(_compiled(gpt, str(SplitLoop(parts=parts)))[1] for parts in (2, 3))],
        "order": [],
        "budgets": [],
    }
    with registry.registered(ForcePrices):
        for at in (2, 3, 4):
            for first, last in ((LESS, MORE), (MORE, LESS)):
                forced = f"{SplitLoop(at=Cuts((at,)))},{ForcePrices(first=first, last=last)}"
                _, row = _compiled(small, forced)
                # As many layers as in the row before keep more, in the other part.
                entry["order"].append(
                    row
                    | {"keep_more": at if first == MORE else SMALL.layers - at}
                    | {"part": "front" if first == MORE else "behind"}
                )
                print(row, flush=True)
    update_report(NAME, entry, markdown)
    around = as_it_is.step_bytes - as_it_is.temp_bytes
    for mebi in BUDGETS_MEBI:
        budget = Remat(budget=Budget(size_bytes=Bytes(mebi * MEBI_BYTES)))
        choice = _choice(gpt, mebi * MEBI_BYTES - around)
        _, whole = _compiled(gpt, str(budget), as_it_is)
        found: dict[str, Any] = {"budget_bytes": mebi * MEBI_BYTES, "whole": whole}
        if choice is not None:
            _, split = _compiled(gpt, f"{SplitLoop(at=Cuts((choice.at,)))},{budget}", as_it_is)
            found["split"] = split
        print(found, flush=True)
        entry["budgets"].append(found)
        text = update_report(NAME, entry, markdown)
    print(text)


def _choice(lowered: Any, limit_bytes: int) -> SplitChoice | None:
    """Where the scan is split so that its temporary memory is within the limit."""
    module = clone_module(lowered.compiler_ir())
    target = targets.load(TARGET)
    pipeline = Pipeline((Remat(),))
    pipeline.run(module, target=target, stop=len(pipeline.steps()) - 1)
    with module.context, ir.Location.unknown():
        (group,), _ = splittable(module.operation)
        plans = uniform_plans(Model(module, target, Remat().min_bytes), group)
    return choose_split(limit_bytes, plans, group.trip_count)


def _compiled(
    lowered: Any, spec: str, as_it_is: Measurement | None = None
) -> tuple[Measurement, dict[str, Any]]:
    """What a compile gave, and its row in the results."""
    start_s = _cpu_seconds()
    found = measure(lowered, spec)
    row: dict[str, Any] = {
        "spec": spec,
        "step_bytes": found.step_bytes,
        "temp_bytes": found.temp_bytes,
        "flops": sum(found.flops.__dict__.values()),
        "compiles": len(found.predictions) or 1,
        "cpu_s": round(_cpu_seconds() - start_s, 1),
    }
    if as_it_is is not None:
        row["added_flops"] = row["flops"] - sum(as_it_is.flops.__dict__.values())
        if found.best_attempt is not None:
            row["predicted_step_bytes"] = found.predictions[found.best_attempt][0]
    return found, row


def _cpu_seconds() -> float:
    """Of this process and of what it started, such as ptxas."""
    return sum(os.times()[:4])


def markdown(report: Report) -> Iterator[str]:
    """The results as tables."""
    yield "# Scans in parts"
    yield ""
    yield (
        "Written by `python -m benchmarks.split_loop`. XLA's memory for an H100; FLOP of the "
        "StableHLO that XLA gets; seconds of CPU for a compile, with all that hloom does."
    )
    for version, entry in report.items():
        yield from ["", f"## jax {version}", "", "### Split alone, scanned GPT of 12 layers", ""]
        columns = ["spec", "temporaries, MiB", "FLOP against `off`", "CPU, s"]
        base = entry["alone"][0]["flops"]
        yield from table(
            columns,
            (
                [
                    f"`{row['spec']}`",
                    _mebi(row["temp_bytes"]),
                    f"{row['flops'] / base - 1:+.2%}",
                    f"{row['cpu_s']:.1f}",
                ]
                for row in entry["alone"]
            ),
        )
        yield from ["", "### Which part keeps more, GPT of 6 layers", ""]
        columns = ["layers that keep more", "they are", "temporaries, MiB"]
        ordered = sorted(entry["order"], key=lambda row: (row["keep_more"], row["part"]))
        yield from table(
            columns,
            ([str(row["keep_more"]), row["part"], _mebi(row["temp_bytes"])] for row in ordered),
            names=2,
        )
        yield from ["", "### Under budgets, scanned GPT of 12 layers", ""]
        columns = ["spec", "predicted, MiB", "step, MiB", "added GFLOP", "compiles", "CPU, s"]
        rows = (one[way] for one in entry["budgets"] for way in ("whole", "split") if way in one)
        yield from table(
            columns,
            (
                [
                    f"`{row['spec']}`",
                    _mebi(row["predicted_step_bytes"]),
                    _mebi(row["step_bytes"]),
                    f"{row['added_flops'] / 1e9:.1f}",
                    str(row["compiles"]),
                    f"{row['cpu_s']:.1f}",
                ]
                for row in rows
            ),
        )


def _mebi(size_bytes: int) -> str:
    return f"{size_bytes / MEBI_BYTES:.1f}"


if __name__ == "__main__":
    main()
