"""What `fit` makes of a program whose layers have a checkpoint, under budgets with room for more.

    python -m benchmarks.undo_checkpoint      (needs the extra cuda13; no GPU; about 5 minutes)

A GPT of 6 layers, each in `jax.checkpoint` with `nothing_saveable`, is compiled for an H100: as it
is, under `fit` with some budgets, and for comparison without a checkpoint. Writes
benchmarks/results/undo_checkpoint_h100.json, which keeps one entry for each version of JAX it was
run with, and undo_checkpoint_h100.md, the same as tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from benchmarks.common.h100 import MEBI_BYTES, measure, placement
from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text, without_cache
from benchmarks.programs.gpt import Gpt
from hloom.passes.fit import Fit
from hloom.passes.framework.options import Budget, Bytes

POLICY = "nothing_saveable"
BUDGETS_MEBI = (1000, 1250, 1750, 2500, 8192)


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    sharding = placement()
    without_cache()
    entry: dict[str, Any] = {}
    for name, scanned in (("scanned", True), ("unrolled", False)):
        plain, wrapped = (
            Gpt(scanned=scanned, policy=policy, layers=6).lower(sharding)
            for policy in (None, POLICY)
        )
        rows = entry[name] = [_row(plain, "off", "no checkpoint"), _row(wrapped, "off", "as it is")]
        for budget_mebi in BUDGETS_MEBI:
            spec = str(Fit(budget=Budget(size_bytes=Bytes(budget_mebi * MEBI_BYTES))))
            rows.append(_row(wrapped, spec, f"`{spec}`"))
            print(name, rows[-1], flush=True)
            written = BENCHMARK.write(**entry)
    print(written)


def _row(lowered: Any, spec: str, title: str) -> dict[str, Any]:
    """What a compile gave."""
    found = measure(lowered, spec)
    best = found.best_attempt
    return {
        "title": title,
        "predicted_step_bytes": None if best is None else found.predictions[best][0],
        "step_bytes": found.step_bytes,
        "flops": sum(dataclasses.asdict(found.flops).values()),
        "products": found.products,
        "compiles": len(found.predictions) or 1,
    }


_COLUMNS: Columns = {
    "program": text("title"),
    "predicted, MiB": mebi("predicted_step_bytes", 1),
    "step, MiB": mebi("step_bytes", 1),
    "added GFLOP": figure("added_flops", "+.1f", 1e-9),
    "products": text("products"),
    "compiles": text("compiles"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    for name in ("scanned", "unrolled"):
        if name in entry:
            as_it_is = entry[name][1]["flops"]
            rows = (row | {"added_flops": row["flops"] - as_it_is} for row in entry[name])
            yield from section(f"## jax {version}, layers {name}", _COLUMNS, rows)


BENCHMARK = Benchmark(
    "undo_checkpoint_h100",
    "undo_checkpoint",
    "Checkpoints undone",
    f"A GPT of 6 layers, each in `jax.checkpoint` with `{POLICY}`. XLA's memory for an H100; "
    "FLOP and matrix products of the StableHLO that XLA gets, FLOP beside those of the program "
    "as it is.",
    _tables,
)


if __name__ == "__main__":
    main()
