"""MaxText's step for four TPUs v5p, without one: its own policies, and hloom under a budget.

    python -m benchmarks.tpu.maxtext    (needs `pip install 'maxtext[tpu]==0.2.5'`; 15 minutes)

Runs MaxText's `train_compile`, as docs/maxtext.md says, in a process for each way. Writes
benchmarks/results/maxtext.json, which keeps one entry for each version of JAX it was run with, and
maxtext.md, the same as tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hloom
from benchmarks.common.measure import Benchmark, Columns, code, count, figure, mebi, section, text
from hloom.targets import deviceless
from hloom.xla.collectives import collectives_by_kind

MEBI_BYTES = 2**20

MODEL = {
    "base_emb_dim": 1024,
    "base_num_query_heads": 8,
    "base_num_kv_heads": 8,
    "head_dim": 128,
    "base_mlp_dim": 2816,
    "base_num_decoder_layers": 8,
    "vocab_size": 32000,
    "per_device_batch_size": 4,
    "max_target_length": 2048,
}
"""MaxText's default decoder, of the size that compiles in a minute."""

_SETTINGS = {
    "compile_topology": "v5p-8",
    "compile_topology_num_slices": 1,
    "run_name": "hloom",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "jax_cache_dir": "",
}

_ENVIRONMENT = {"JAX_PLATFORMS": "cpu"} | deviceless.WITHOUT_TPU

LEAST = "minimal_with_context"
"""The policy of MaxText 0.2.5 that recomputes least: `none` means no policy, as `full` does."""


def main() -> None:
    """Compiles every way with the JAX that runs this, and writes the files."""
    ways: list[dict[str, Any]] = []
    full = _measured("full", "off")
    budget = f"fit{{budget={-(-full['step_bytes'] // MEBI_BYTES)}MiB}}"
    for policy, spec in (("full", "off"), (LEAST, "off"), (LEAST, budget)):
        ways.append(full if (policy, spec) == ("full", "off") else _measured(policy, spec))
        print(ways[-1], flush=True)
        BENCHMARK.write(maxtext=version("maxtext"), libtpu=version("libtpu"), ways=ways)


def _measured(policy: str, spec: str) -> dict[str, Any]:
    """What a process of MaxText's `train_compile` gives. Raises RuntimeError where it fails."""
    settings = {**_SETTINGS, **MODEL, "remat_policy": policy}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.tpu.maxtext", str(file)]
            + [f"{name}={value}" for name, value in settings.items()],
            env=os.environ | _ENVIRONMENT | {"JAX_HLOOM": spec},
            capture_output=True,
            text=True,
            check=False,
        )
        if not file.exists():
            raise RuntimeError(f"{policy}, {spec}: train_compile failed:\n{result.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return {"policy": policy, "spec": spec, **found}


def _child(file: Path, settings: list[str]) -> None:
    """`train_compile` itself, with what it compiled read off."""
    from maxtext.trainers.pre_train import train_compile

    compile_ = train_compile.jit_and_compile

    def read_off(*arguments: Any) -> Any:
        compiled = compile_(*arguments)
        memory, text = compiled.memory_analysis(), compiled.as_text()
        around = memory.argument_size_in_bytes + memory.output_size_in_bytes
        around -= memory.alias_size_in_bytes
        steps = [one for one in hloom.records() if one.module == "jit_train_step"]
        found = {
            "step_bytes": memory.peak_memory_in_bytes,
            "temp_bytes": memory.peak_memory_in_bytes - around,
            "products": text.count("convolution("),
            "kernels": text.count('"tpu_custom_call"'),
            "added_work": steps[-1].added_work if steps else None,
            "compiles": steps[-1].compiles if steps else 1,
            "collectives": collectives_by_kind(text),
        }
        file.write_text(json.dumps(found), encoding="utf-8")
        return compiled

    train_compile.jit_and_compile = read_off
    train_compile.main(["train_compile", *settings])


_COLUMNS: Columns = {
    "remat_policy": code("policy"),
    "JAX_HLOOM": code("spec"),
    "MiB of a step": mebi("step_bytes"),
    "temporaries": mebi("temp_bytes"),
    "products in the text": text("products"),
    "attention kernels": text("kernels"),
    "FLOPs added by hloom": figure("added_work", ".1%"),
    "compiles": text("compiles"),
    **{kind: count("collectives", kind) for kind in ("all-gather", "all-reduce", "reduce-scatter")},
}


def _tables(jax_version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = (
        f"## MaxText {entry['maxtext']}, jax {jax_version}, libtpu {entry['libtpu']}, "
        f"Python {entry['python']}"
    )
    return section(title, _COLUMNS, entry["ways"], names=2)


_WHAT_IT_IS = """\
The training step of MaxText's default decoder, 8 layers scanned, width 1024, vocabulary 32000, 4
examples of 2048 tokens on each of four TPUs v5p, FSDP, compiled by its `train_compile` on a machine
without a TPU. MiB are the peak of a step on one device, XLA's figure. Products, and calls of the
kernels of attention, are those in XLA's text: in a loop over layers each counts once. Collectives
count as often as they run."""


BENCHMARK = Benchmark("maxtext", "tpu.maxtext", "MaxText for four TPUs v5p", _WHAT_IT_IS, _tables)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _child(Path(sys.argv[1]), sys.argv[2:])
    else:
        main()
