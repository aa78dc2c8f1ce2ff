"""The time of a step on the CPU, as it is and with its loss head in chunks, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common.h100 import MEBI_BYTES
from benchmarks.common.tables import Report, heading, table, update_report
from benchmarks.programs.gpt import Gpt
from hloom.passes.framework import registry

NAME = "loss_heads_cpu"

GPT = Gpt(scanned=True, layers=4, width=256, heads=4, vocabulary=32768, batch=4, sequence=256)
SPECS = ("off", "one-hot", "chunk", "chunk{chunks=8}")
ROUNDS = 7


def measure_and_write() -> str:
    """Steps of all programs in turn, so that what else the machine does meets them alike."""
    lowered = GPT.lower()
    specs = [spec for spec in SPECS if spec == "off" or spec.partition("{")[0] in registry.names()]
    compiled = {}
    for spec in specs:
        jax.clear_caches()
        compiled[spec] = lowered.compile(compiler_options={"hloom": spec})
    arguments = jax.tree.map(_drawn, lowered.args_info[0])
    seconds: dict[str, list[float]] = {spec: [] for spec in specs}
    for number in range(1 + ROUNDS):
        for spec, program in compiled.items():
            start = time.process_time()
            jax.block_until_ready(program(*arguments))
            if number:  # the first of each warms up
                seconds[spec].append(time.process_time() - start)
    entry = {
        spec: {
            "cpu_seconds": statistics.median(seconds[spec]),
            "temp_bytes": program.memory_analysis().temp_size_in_bytes,
        }
        for spec, program in compiled.items()
    }
    return update_report(NAME, entry, markdown)


def _drawn(info: Any) -> jax.Array:
    """Random contents: small weights, or words."""
    random = np.random.default_rng(0)
    if jnp.issubdtype(info.dtype, jnp.integer):
        return jnp.asarray(random.integers(0, GPT.vocabulary, info.shape), info.dtype)
    return jnp.asarray(random.normal(size=info.shape) / 20, info.dtype)


def markdown(report: Report) -> Iterator[str]:
    """The results as tables."""
    yield from heading("Loss heads, CPU", "loss_heads --time", _WHAT_IT_IS)
    for version, entry in report.items():
        yield ""
        yield f"## jax {version}"
        yield ""
        yield from table(
            ["spec", "CPU seconds", "of `off`", "MiB"],
            [
                [
                    f"`{spec}`",
                    f"{found['cpu_seconds']:.2f}",
                    f"{found['cpu_seconds'] / entry['off']['cpu_seconds']:.2f}",
                    f"{found['temp_bytes'] / MEBI_BYTES:.0f}",
                ]
                for spec, found in entry.items()
            ],
        )


_WHAT_IT_IS = f"""\
A step (`value_and_grad`) of a GPT of {GPT.layers} layers, width {GPT.width},
vocabulary {GPT.vocabulary}, tokens [{GPT.batch}, {GPT.sequence}], bfloat16: the median of {ROUNDS}
steps in CPU seconds, all in one run, in turn, beside that of the program as it is; MiB of
temporary memory."""
