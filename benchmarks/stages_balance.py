"""How evenly models whose layers differ are cut into stages, planned for H100s.

    python -m benchmarks.stages_balance          (no GPU; about a minute)

What `hloom.stages` cuts an encoder-decoder, and dense layers beside mixtures of experts, into: the
longest stage over the mean by rooflines, forward and backward, embedding and head included; what
the stages send each other, and what they hold. Writes benchmarks/results/stages_balance.json, which
keeps one entry for each version of JAX it was run with, and stages_balance.md, the same as a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.common.h100 import placement
from benchmarks.common.measure import (
    Benchmark,
    Columns,
    figure,
    mebi,
    section,
    text,
)
from benchmarks.programs.uneven import dense_and_experts, encoder_decoder
from hloom.passes.framework.pipeline import Pipeline
from hloom_steps.mpmd.cut import Call, cut
from hloom_steps.stages import Stages as StagesPass

PROGRAMS = {
    "encoder-decoder, 8 + 8 layers": encoder_decoder,
    "16 layers, every other one of 4 experts": dense_and_experts,
}


def main() -> None:
    """Plans with the JAX that runs this, and writes both files."""
    [device] = placement().device_set
    rows: list[dict[str, Any]] = []
    for name, program in PROGRAMS.items():
        loss, parameters, batch = program()
        call = Call.of(loss, parameters, batch, {})
        for count in (2, 4, 8):
            found = cut(call, call.batch, Pipeline(()), StagesPass(stages=count), device)
            stages = found.stages
            held = [stages.residual_bytes(stage) for stage in range(count)]
            rows.append({
                "model": name, "stages": count, "balance": stages.balance,
                "sent": sum(stages.values[each.value].bytes for each in stages.transfers),
                "least": min(held), "most": max(held), "all": sum(held),
            })  # fmt: skip
            print(rows[-1], flush=True)
    print(BENCHMARK.write(rows=rows))


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    return section(f"## jax {version}, Python {entry['python']}", _columns(), entry["rows"])


def _columns() -> Columns:
    return {
        "model": text("model"),
        "stages": figure("stages", "d"),
        "longest stage over the mean": figure("balance", ".3f"),
        "sent, both ways": mebi("sent", 1),
        "residuals of a stage, least": mebi("least"),
        "most": mebi("most"),
        "of all": mebi("all"),
    }


BENCHMARK = Benchmark(
    "stages_balance",
    "stages_balance",
    "How evenly models whose layers differ are cut into stages",
    "Width 768, 8 heads, vocabulary 8192, bfloat16 (`benchmarks/programs/uneven.py`), a microbatch "
    "of one sequence of 1024, MiB, by rooflines of an H100. Nothing is compiled.",
    _tables,
)


if __name__ == "__main__":
    main()
