"""XLA's own pipelining of what a pipeline sends, compiled for H100s without one.

    python -m benchmarks.pipeline.send_recv        (the extra cuda13; no GPU; about 5 minutes)

Writes benchmarks/results/pipeline_send_recv.json, which keeps one entry for each version of JAX it
was run with, and pipeline_send_recv.md, the same as tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jax.sharding import PartitionSpec

from benchmarks.common.measure import Benchmark, code, figure, mebi, section, text, without_cache
from benchmarks.pipeline.h100 import Case, Model, lowered
from benchmarks.pipeline.values import shown_mesh
from hloom.targets import deviceless
from hloom.xla.hlo import HloModule

MODEL = Model(layers=8, width=512, heads=4, vocabulary=1024, batch=16, length=256)

LEVEL = "xla_gpu_experimental_pipeline_parallelism_opt_level"
_ENABLE = "PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE"

Options = dict[str, str]


def _cases() -> Iterator[tuple[dict[str, int], int, Options]]:
    stages, both = {"stage": 4}, {"data": 2, "stage": 4}
    for sizes, repeats in ((stages, 1), (stages, 2), (both, 1)):
        yield sizes, repeats, {}
        yield sizes, repeats, {LEVEL: _ENABLE}


def main() -> None:
    """Compiles everything with the JAX that runs this, and writes the files after each row."""
    deviceless.prepare()
    without_cache()
    rows: list[dict[str, Any]] = []
    for sizes, repeats, options in _cases():
        batch = PartitionSpec("data") if "data" in sizes else None
        spec = f"pipeline{{microbatches=8 repeats={repeats} dtype=keep}}"
        case = Case(sizes, "nothing_saveable", spec, PartitionSpec("stage"), batch)
        rows.append(_measured(case, options))
        print(rows[-1], flush=True)
        BENCHMARK.write(rows=rows)


def _measured(case: Case, options: Options) -> dict[str, Any]:
    step = lowered(case, MODEL)
    compiled = step.compile(compiler_options={"hloom": case.spec, **options})
    ticks = list(_ticks(compiled.as_text()))
    return {
        "mesh": shown_mesh(case.sizes),
        "spec": case.spec,
        "options": " ".join(f"{name}={value}" for name, value in options.items()) or "none",
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "permutes": sum(tick["permutes"] for tick in ticks),
        "sends": sum(tick["sends"] for tick in ticks),
        "chained": sum(tick["chained"] for tick in ticks),
        "waits_spanning": sum(tick["spanning"] for tick in ticks),
        "copies": sum(tick["copies"] for tick in ticks),
        "pairs": " and ".join(dict.fromkeys(tick["pairs"] for tick in ticks)),
    }


_ARRIVES = {"collective-permute-start": "collective-permute-done", "recv": "recv-done"}
_PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\})")


def _ticks(hlo: str) -> Iterator[dict[str, Any]]:
    """Of each loop over ticks, in XLA's schedule, what it does with what devices send.

    Each is a computation that receives. Spanning are those waits for what arrives between whose
    start and end the segment, an inner loop, runs.
    """
    module = HloModule(hlo)
    for computation in module.computations:
        found = list(module.of_computation(computation))
        kinds = [one.opcode for one in found]
        starts = [at for at, kind in enumerate(kinds) if kind in _ARRIVES]
        if not starts:
            continue
        spanning = 0
        for at in starts:
            ends = (
                later
                for later, one in enumerate(found)
                if one.opcode == _ARRIVES[kinds[at]] and found[at].name in one.operands
            )
            spanning += "while" in kinds[at : next(ends)]
        sends = [at for at, kind in enumerate(kinds) if kind == "send"]
        yield {
            "permutes": kinds.count("collective-permute-start"),
            "sends": len(sends),
            "chained": sum("recv-done" in kinds[:at] for at in sends),
            "spanning": spanning,
            "copies": sum(
                one.opcode == "copy"
                and one.operands[0].startswith("get-tuple-element")
                and bool(one.array.shape)
                for one in found
            ),
            "pairs": " ".join(
                pairs[1] for at in starts if (pairs := _PAIRS.search(found[at].attributes))
            ),
        }


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## jax {version}, Python {entry['python']}")
    columns = {
        "mesh": text("mesh"),
        "spec": code("spec"),
        "options of XLA": code("options"),
        "temporaries, MiB": mebi("temp_bytes"),
        "permutes": figure("permutes", "d"),
        "sends": figure("sends", "d"),
        "sends behind the wait for what arrives": figure("chained", "d"),
        "waits that span the segment": figure("waits_spanning", "d"),
        "copies of a carry": figure("copies", "d"),
        "who sends to whom": code("pairs"),
    }
    yield from section("", columns, entry["rows"], names=3)


_WHAT_IT_IS = """\
The loss and the gradients of a GPT of 8 scanned layers of width 512, 16 examples of 256 tokens, as
a pipeline of 8 microbatches, compiled for H100s with options of XLA for pipelines. The columns
count operations of the two loops over ticks, forward and backward, in XLA's optimized text, which
is in the order of its schedule; permutes outside of these loops, which deal layers out, are in the
columns as well. A send behind a wait begins when what the device itself receives in that tick has
arrived. A wait that spans the segment ends behind the layers that the device computes in that
tick."""


BENCHMARK = Benchmark(
    "pipeline_send_recv",
    "pipeline.send_recv",
    "XLA's own pipelining of a pipeline's transfers, H100",
    _WHAT_IT_IS,
    _tables,
)


if __name__ == "__main__":
    main()
