"""Pipelines compiled for slices of TPUs v5p without one: memory, permutes and loops beside FSDP.

    python -m benchmarks.tpu.pipeline        (needs the extra tpu; no TPU; about 20 minutes)

Writes benchmarks/results/pipeline_tpu.json, which keeps one entry for each version of JAX it was
run with, and pipeline_tpu.md, the same as tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.sharding import PartitionSpec

from benchmarks.common.measure import Benchmark, without_cache
from benchmarks.pipeline.h100 import Case, Model, measured, tables
from hloom.targets import deviceless

TARGET = "v5p"
MODEL = Model(layers=8, width=1024, heads=8, vocabulary=8192, batch=16, length=1024)


def cases() -> Iterator[Case]:
    """FSDP and pipelines at equal devices."""
    stages, held = PartitionSpec("stage"), PartitionSpec("data")
    for policy, turns in (("nothing_saveable", (1, 2)), ("", (1,))):
        yield Case({"data": 4}, policy, "off", PartitionSpec(None, "data"), held)
        for repeats in turns:
            spec = f"pipeline{{microbatches=8 repeats={repeats} dtype=keep}}"
            yield Case({"stage": 4}, policy, spec, stages, None)
    spec = "pipeline{microbatches=4 repeats=1 dtype=keep}"
    yield Case({"data": 2, "stage": 2}, "nothing_saveable", spec, stages, held)


def main() -> None:
    """Compiles everything with the JAX that runs this, and writes the files after each row."""
    deviceless.prepare()
    without_cache()
    rows: dict[int, Any] = {}
    for number, case in enumerate(cases()):
        rows[number] = measured(case, MODEL, TARGET)
        print(number, rows[number], flush=True)
        BENCHMARK.write(rows=rows)


_WHAT_IT_IS = """\
The loss and the gradients of a GPT of 8 scanned layers of width 1024, 8 heads, a vocabulary of
8192, bfloat16, plain attention, 16 examples of 1024 tokens in all, compiled for slices of TPUs v5p.
The rest is as for [H100s](pipeline_h100.md)."""


BENCHMARK = Benchmark(
    "pipeline_tpu", "tpu.pipeline", "Pipelines over scanned layers, TPU v5p", _WHAT_IT_IS, tables
)


if __name__ == "__main__":
    main()
