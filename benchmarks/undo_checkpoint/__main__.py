"""What `fit` makes of a program whose layers have a checkpoint, under budgets with room for more.

    python -m benchmarks.undo_checkpoint      (needs the extra cuda13; no GPU; about 5 minutes)

A GPT of 6 layers, each in `jax.checkpoint` with `nothing_saveable`, is compiled for an H100: as it
is, under `fit` with some budgets, and for comparison without a checkpoint. Writes
benchmarks/results/undo_checkpoint_h100.json, which keeps one entry for each version of JAX it was
run with, and undo_checkpoint_h100.md, the same as tables.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator
from typing import Any

import jax

import hloom
from benchmarks.common.h100 import MEBI_BYTES, measure, placement
from benchmarks.common.tables import Report, heading, table, update_report
from benchmarks.programs.gpt import Gpt
from hloom.passes.fit import Fit
from hloom.passes.framework.options import Budget, Bytes

NAME = "undo_checkpoint_h100"
POLICY = "nothing_saveable"
BUDGETS_MEBI = (1000, 1250, 1750, 2500, 8192)


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    sharding = placement()
    jax.config.update("jax_enable_compilation_cache", False)
    entry: dict[str, Any] = {"hloom": hloom.__version__, "python": platform.python_version()}
    text = ""
    for name, scanned in (("scanned", True), ("unrolled", False)):
        plain, wrapped = (
            Gpt(scanned=scanned, policy=policy, layers=6).lower(sharding)
            for policy in (None, POLICY)
        )
        rows = entry[name] = [_row(plain, "off", "no checkpoint"), _row(wrapped, "off", "as it is")]
        for mebi in BUDGETS_MEBI:
            spec = str(Fit(budget=Budget(size_bytes=Bytes(mebi * MEBI_BYTES))))
            rows.append(_row(wrapped, spec, f"`{spec}`"))
            print(name, rows[-1], flush=True)
            text = update_report(NAME, entry, markdown)
    print(text)


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


def markdown(report: Report) -> Iterator[str]:
    """The results as tables."""
    yield from heading(
        "Checkpoints undone",
        "undo_checkpoint",
        f"A GPT of 6 layers, each in `jax.checkpoint` with `{POLICY}`. XLA's memory for an H100; "
        "FLOP and matrix products of the StableHLO that XLA gets, FLOP beside those of the program "
        "as it is.",
    )
    for version, entry in report.items():
        for name in ("scanned", "unrolled"):
            if name in entry:
                yield from ["", f"## jax {version}, layers {name}", "", *_table(entry[name])]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    as_it_is = rows[1]["flops"]
    columns = ["program", "predicted, MiB", "step, MiB", "added GFLOP", "products", "compiles"]
    return table(
        columns,
        (
            [
                row["title"],
                _mebi(row["predicted_step_bytes"]),
                _mebi(row["step_bytes"]),
                f"{(row['flops'] - as_it_is) / 1e9:+.1f}",
                str(row["products"]),
                str(row["compiles"]),
            ]
            for row in rows
        ),
    )


def _mebi(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / MEBI_BYTES:.1f}"


if __name__ == "__main__":
    main()
