"""The training steps that the benchmarks of `remat` compile, by name, with or without a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from benchmarks.programs import llama, lstm, mixture_of_experts, resnet, two_level_scan, unet
from benchmarks.programs.common import Checkpoint, checkpoint_with
from benchmarks.programs.gpt import Gpt
from benchmarks.programs.hard import (
    associative_scan,
    diffusion_unet,
    forces,
    maml,
    message_passing,
)

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


def _gpt(scanned: bool, layers: int = 12) -> Subject:
    title = f"GPT, {layers} layers {'scanned' if scanned else 'unrolled'}"
    return _gpt_titled(title, scanned, layers=layers)


def _gpt_titled(
    title: str,
    scanned: bool,
    *,
    as_it_is: str | None = None,
    layers: int = 12,
    vocabulary: int = 8192,
) -> Subject:
    """A GPT that has a policy on its blocks already, or none."""

    def lower(policy: str | None, sharding: Any) -> Any:
        program = Gpt(
            scanned=scanned, policy=policy or as_it_is, layers=layers, vocabulary=vocabulary
        )
        return program.lower(sharding)

    return Subject(title, scanned, lower)


def _program(title: str, program: Callable[[Checkpoint], Any], *, scanned: bool) -> Subject:
    def lower(policy: str | None, sharding: Any) -> Any:
        # In a scan nothing can merge the copy back, and the barrier would only cost.
        function, arguments = program(checkpoint_with(policy, prevent_cse=not scanned))
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            arguments,
        )
        return jax.jit(function).lower(*placed)

    return Subject(title, scanned, lower)


SUBJECTS = {
    "gpt_unrolled": _gpt(scanned=False),
    "gpt_scanned": _gpt(scanned=True),
    "llama": _program("Llama-style, 8 layers", llama.program, scanned=True),
    "mixture_of_experts": _program(
        "mixture of experts, 6 layers", mixture_of_experts.program, scanned=True
    ),
    "resnet": _program("ResNet-50", resnet.program, scanned=False),
    "unet": _program("U-Net", unet.program, scanned=False),
    "lstm": _program("LSTM, 2 layers of 256 steps", lstm.program, scanned=True),
    "two_level_scan": _program("scan of 6 scans of 6 layers", two_level_scan.program, scanned=True),
}
"""What every benchmark of memory is about."""

HARD_SUBJECTS = {
    "gpt_131072": _gpt_titled(
        "GPT, 12 layers scanned, 131072 words", scanned=True, vocabulary=131072
    ),
    "llama_128256": _program(
        "Llama-style, 8 layers, 128256 words",
        partial(llama.program, vocabulary=128256),
        scanned=True,
    ),
    "associative_scan": _program(
        "associative scans, 4 layers unrolled", associative_scan.program, scanned=False
    ),
    "message_passing": _program(
        "message passing, 6 rounds unrolled", message_passing.program, scanned=False
    ),
    "forces": _program("forces, 6 layers scanned", forces.program, scanned=True),
    "maml": _program("MAML, 8 layers scanned", maml.program, scanned=True),
    "diffusion_unet": _program(
        "diffusion U-Net with attention", diffusion_unet.program, scanned=False
    ),
    "checkpointed_gpt": _gpt_titled(
        "GPT, 12 layers scanned, as it is `nothing_saveable`",
        scanned=True,
        as_it_is="nothing_saveable",
    ),
}
"""Large loss heads, gradients of gradients, layers that are no plain blocks, and layers that have a
checkpoint as they are."""

TPU_SUBJECTS = {
    "gpt_unrolled": _gpt(scanned=False, layers=4),
    "gpt_scanned": _gpt(scanned=True, layers=4),
    **{name: SUBJECTS[name] for name in ("llama", "mixture_of_experts", "resnet")},
}
"""What is compiled for TPUs: fewer layers of a GPT, since a compile takes a minute."""
