"""The training steps that the benchmarks of `remat` compile, by name, with or without a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax

from benchmarks.programs import llama, lstm, mixture_of_experts, resnet, two_level_scan, unet
from benchmarks.programs.common import checkpoint_with
from benchmarks.programs.gpt import Gpt

POLICIES = (
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
)
"""The members of `jax.checkpoint_policies` that need no names, each once. The one that takes
memory kinds instead, `offload_dot_with_no_batch_dims`, moves values to the host and recomputes as
much as `dots_with_no_batch_dims_saveable`."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program to be lowered.

    Attributes:
      title: what it is, for tables.
      scanned: its blocks stand in a scan.
      lower: lowers it with a policy on its blocks, or None, for the devices of a sharding, or None.
    """

    title: str
    scanned: bool
    lower: Callable[[str | None, Any], Any]


def _gpt(scanned: bool) -> Subject:
    def lower(policy: str | None, sharding: Any) -> Any:
        return Gpt(scanned=scanned, policy=policy).lower(sharding)

    return Subject(f"GPT, 12 layers {'scanned' if scanned else 'unrolled'}", scanned, lower)


def _program(title: str, module: ModuleType, *, scanned: bool) -> Subject:
    def lower(policy: str | None, sharding: Any) -> Any:
        # In a scan nothing can merge the copy back, and the barrier would only cost.
        function, arguments = module.program(checkpoint_with(policy, prevent_cse=not scanned))
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            arguments,
        )
        return jax.jit(function).lower(*placed)

    return Subject(title, scanned, lower)


SUBJECTS = {
    "gpt_unrolled": _gpt(scanned=False),
    "gpt_scanned": _gpt(scanned=True),
    "llama": _program("Llama-style, 8 layers", llama, scanned=True),
    "mixture_of_experts": _program(
        "mixture of experts, 6 layers", mixture_of_experts, scanned=True
    ),
    "resnet": _program("ResNet-50", resnet, scanned=False),
    "unet": _program("U-Net", unet, scanned=False),
    "lstm": _program("LSTM, 2 layers of 256 steps", lstm, scanned=True),
    "two_level_scan": _program("scan of 6 scans of 6 layers", two_level_scan, scanned=True),
}
