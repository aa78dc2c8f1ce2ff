"""Temporaries of models with attention on a TPU v5p: as they are, and by the pass.

    python -m benchmarks.tpu.attention [MODEL ...]   (needs the extra tpu; no TPU; half an hour)

The models are those of `benchmarks.attention`, with heads of 64 elements, and GPTs with heads of
128. Nothing ran. Writes benchmarks/results/attention_tpu.json and attention_tpu.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import hloom
from benchmarks.common.measure import Benchmark, Columns, mebi, section, text, without_cache
from benchmarks.programs.attentions import MODELS
from benchmarks.programs.gpt import Gpt
from hloom._jax.executables import memory_figures
from hloom.targets import deviceless

TARGET = "v5p"

GPTS = {
    "GPT of 1 layer, 1024": Gpt(scanned=False, layers=1, heads=6),
    "GPT of 12 layers, scanned, 4096": Gpt(scanned=True, heads=6, sequence=4096),
}
TAKEN = (
    "decoder, 1024",
    "decoder, scanned, 4096",
    "4 of 12 heads of keys, 8192",
    "encoder with padding, 1024",
    "vision, vmapped, 1024",
)
"""The models whose masks Pallas' kernels have; T5 has a bias."""

NAMES = (*GPTS, *TAKEN)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu.attention")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all where none is named")
    chosen = parser.parse_args(arguments).models or NAMES
    deviceless.prepare()
    without_cache()
    rows = {row["model"]: row for row in BENCHMARK.before().get("models", ())}
    for name in chosen:
        model = GPTS.get(name) or MODELS[name]
        lowered = model.lower(deviceless.placement(TARGET))
        rows[name] = {"model": name} | {
            f"{spec}_bytes": _temporaries(lowered, spec) for spec in ("attention", "off")
        }
        rows[name]["plan"] = next(
            run.summary for run in hloom.records()[-1].runs if run.name == "attention"
        )
        print(BENCHMARK.write(models=[rows[each] for each in NAMES if each in rows]))


def _temporaries(lowered: Any, spec: str) -> int | None:
    """Returns the bytes that XLA plans; None where it refuses the program."""
    try:
        compiled = lowered.compile(compiler_options={"hloom": spec})
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None
    return memory_figures(compiled.runtime_executable()).temp_bytes


def _as_it_is(row: dict[str, Any]) -> str:
    found = row["off_bytes"]
    return "refused" if found is None else mebi("off_bytes")(row)


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from section(f"jax {version}", COLUMNS, entry["models"])


COLUMNS: Columns = {
    "model": text("model"),
    "as it is, MiB": _as_it_is,
    "`attention`": mebi("attention_bytes"),
    "plan": text("plan"),
}

BENCHMARK = Benchmark(
    "attention_tpu",
    "tpu.attention",
    "Attention in a fused kernel on a TPU",
    "Temporary memory by compiles for a v5p without one, by JAX's splash attention. Where XLA "
    "refuses a program, it takes more than the device has. Nothing here ran.",
    _tables,
)

if __name__ == "__main__":
    main()
