"""What `split-loop` gains under budgets between the steps of a scan, and what it costs.

    python -m benchmarks.split_loop           (needs the extra cuda13; no GPU; about 10 minutes)

A scanned GPT is compiled for an H100: as it is, split alone, and for each budget whole and split
where `choose_split` says. A smaller one is compiled with plans forced on its parts, which shows
which part should keep more. Writes benchmarks/results/split_loop_h100.json, which keeps one entry
for each version of JAX it was run with, and split_loop_h100.md, the same as tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.mlir import ir

from benchmarks.common.h100 import MEBI_BYTES, TARGET, Measurement, measure, placement
from benchmarks.common.measure import (
    Benchmark,
    Columns,
    code,
    cpu_seconds,
    figure,
    mebi,
    section,
    text,
    without_cache,
)
from benchmarks.programs.gpt import Gpt
from benchmarks.split_loop.forced import ForcePrices
from hloom import targets
from hloom.passes.framework import registry
from hloom.passes.framework.options import Budget, Bytes, Cuts
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.model import Model
from hloom.passes.planner.uniform import uniform_plans
from hloom.passes.remat import Remat
from hloom.passes.split_loop import SplitLoop
from hloom.passes.split_loop.groups import splittable
from hloom.passes.split_loop.plan import SplitChoice, choose_split

GPT = Gpt(scanned=True)
SMALL = Gpt(scanned=True, layers=6, width=256, heads=4, sequence=512, vocabulary=512)
BUDGETS_MEBI = (1500, 1800, 2100, 2700, 3000, 3400, 5000)

LESS, MORE = 18, 21
"""Two prices at which the plans of `SMALL` differ most."""


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    sharding = placement()
    without_cache()
    gpt, small = GPT.lower(sharding), SMALL.lower(sharding)
    as_it_is, row = _compiled(gpt, "off")
    print(row, flush=True)
    entry: dict[str, Any] = {
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
    BENCHMARK.write(**entry)
    around = as_it_is.step_bytes - as_it_is.temp_bytes
    for budget_mebi in BUDGETS_MEBI:
        budget = Remat(budget=Budget(size_bytes=Bytes(budget_mebi * MEBI_BYTES)))
        choice = _choice(gpt, budget_mebi * MEBI_BYTES - around)
        _, whole = _compiled(gpt, str(budget), as_it_is)
        found: dict[str, Any] = {"budget_bytes": budget_mebi * MEBI_BYTES, "whole": whole}
        if choice is not None:
            _, split = _compiled(gpt, f"{SplitLoop(at=Cuts((choice.at,)))},{budget}", as_it_is)
            found["split"] = split
        print(found, flush=True)
        entry["budgets"].append(found)
        written = BENCHMARK.write(**entry)
    print(written)


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
    start_s = cpu_seconds()
    found = measure(lowered, spec)
    row: dict[str, Any] = {
        "spec": spec,
        "step_bytes": found.step_bytes,
        "temp_bytes": found.temp_bytes,
        "flops": sum(found.flops.__dict__.values()),
        "compiles": len(found.predictions) or 1,
        "cpu_s": round(cpu_seconds() - start_s, 1),
    }
    if as_it_is is not None:
        row["added_flops"] = row["flops"] - sum(as_it_is.flops.__dict__.values())
        if found.best_attempt is not None:
            row["predicted_step_bytes"] = found.predictions[found.best_attempt][0]
    return found, row


_ALONE: Columns = {
    "spec": code("spec"),
    "temporaries, MiB": mebi("temp_bytes", 1),
    "FLOP against `off`": figure("added", "+.2%"),
    "CPU, s": figure("cpu_s", ".1f"),
}
_ORDER: Columns = {
    "layers that keep more": text("keep_more"),
    "they are": text("part"),
    "temporaries, MiB": mebi("temp_bytes", 1),
}
_BUDGETS: Columns = {
    "spec": code("spec"),
    "predicted, MiB": mebi("predicted_step_bytes", 1),
    "step, MiB": mebi("step_bytes", 1),
    "added GFLOP": figure("added_flops", ".1f", 1e-9),
    "compiles": text("compiles"),
    "CPU, s": figure("cpu_s", ".1f"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## jax {version}")
    base = entry["alone"][0]["flops"]
    alone = (row | {"added": row["flops"] / base - 1} for row in entry["alone"])
    yield from section("### Split alone, scanned GPT of 12 layers", _ALONE, alone)
    ordered = sorted(entry["order"], key=lambda row: (row["keep_more"], row["part"]))
    yield from section("### Which part keeps more, GPT of 6 layers", _ORDER, ordered, names=2)
    rows = (one[way] for one in entry["budgets"] for way in ("whole", "split") if way in one)
    yield from section("### Under budgets, scanned GPT of 12 layers", _BUDGETS, rows)


BENCHMARK = Benchmark(
    "split_loop_h100",
    "split_loop",
    "Scans in parts",
    "XLA's memory for an H100; FLOP of the StableHLO that XLA gets; seconds of CPU for a compile, "
    "with all that hloom does.",
    _tables,
)


if __name__ == "__main__":
    main()
