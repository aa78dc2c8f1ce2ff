"""MaxText's training step, as it lowers it for four TPUs v5p under one of its policies.

    python -m benchmarks.tpu.maxtext.programs FILE SETTING=VALUE ...    (with MaxText installed)

`train_compile` of MaxText does the work, in a process of its own. What it lowers is kept in
build/maxtext/, so that a policy is lowered once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.commits import ROOT
from hloom.targets import deviceless

KEPT = ROOT / "build" / "maxtext"

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

DECODERS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {
        "decoder_block": "mixtral",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "capacity_factor": 1.25,
        "megablox": False,
        "sparse_matmul": False,
        "base_moe_mlp_dim": 2816,
    },
}
MESHES: dict[str, dict[str, int]] = {
    "FSDP": {},
    "FSDP x tensor": {"ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 2},
}

LEAST = "minimal_with_context"
"""The policy of MaxText 0.2.5 that recomputes least: `none` means no policy, as `full` does."""

POLICIES: dict[str, dict[str, Any]] = {
    "full": {},
    "save_out_proj": {},
    "save_qkv_proj": {},
    "save_dot_except_mlp": {},
    "minimal": {},
    LEAST: {},
    "custom": {"context": "device", "out_proj": "device"},
}
"""What is set beside a policy's name: a custom one keeps attention, so that its kernel runs once,
and its product."""


def lowered(decoder: str, mesh: str, policy: str) -> str:
    """The step in StableHLO. Raises RuntimeError where MaxText fails."""
    file = KEPT / f"{decoder}_{mesh.replace(' ', '_')}_{policy}.mlir"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        way = {**DECODERS[decoder], **MESHES[mesh], "remat_policy": policy, **POLICIES[policy]}
        _lower(file, {**_SETTINGS, **MODEL, **way})
    return file.read_text("utf-8")


def _lower(file: Path, settings: Mapping[str, Any]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.tpu.maxtext.programs", str(file)]
        + [f"{name}={value}" for name, value in settings.items()],
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | deviceless.WITHOUT_TPU,
        capture_output=True,
        text=True,
        check=False,
    )
    if not file.exists():
        raise RuntimeError(f"{settings}: train_compile failed:\n{result.stderr[-2000:]}")


class _LoweredError(Exception):
    """Ends `train_compile`, which would compile next."""


def _main(file: Path, settings: Sequence[str]) -> None:
    import jax
    from maxtext.trainers.pre_train import train_compile

    lower = jax.stages.Traced.lower

    def kept(traced: Any, *arguments: Any, **options: Any) -> Any:
        found = lower(traced, *arguments, **options)
        text = str(found.compiler_ir())
        if "module @jit_train_step" not in text:
            return found
        written = file.with_suffix(".part")
        written.write_text(text, encoding="utf-8")
        written.replace(file)
        raise _LoweredError

    setattr(jax.stages.Traced, "lower", kept)  # noqa: B010 # for this process
    try:
        train_compile.main(["train_compile", *settings])
    except _LoweredError:
        return


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
