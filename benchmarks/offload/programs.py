"""Scans whose residuals may go to the host, lowered for an H100."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from benchmarks.programs.gpt import Gpt

_TOKENS = 4096


def perceptrons(
    sharding: Any, *, layers: int = 24, width: int = 8192, by_hand: bool = False
) -> Any:
    """The gradient of layers x + tanh(x A) B in a scan, on 4096 tokens, bfloat16.

    With ``by_hand`` each layer is checkpointed and has its input on the host, by JAX's
    `save_and_offload_only_these_names`.
    """

    def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        first, second = weights
        if by_hand:
            x = checkpoint_name(x, "input")
        return x + jnp.tanh(x @ first) @ second, None

    if by_hand:
        layer = jax.checkpoint(
            layer,
            policy=jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=["input"],
                offload_src="device",
                offload_dst="pinned_host",
            ),
            prevent_cse=False,
        )

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(layer, x, weights)[0].astype("float32").sum()

    def shaped(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=sharding)

    weights = shaped(layers, width, width), shaped(layers, width, width)
    return jax.jit(jax.grad(loss, (0, 1))).lower(weights, shaped(_TOKENS, width))


_SMALL = Gpt(scanned=True, policy="dots_saveable", layers=24)
_LARGE = Gpt(
    scanned=True,
    policy="dots_saveable",
    layers=32,
    width=4096,
    heads=32,
    vocabulary=32768,
    batch=2,
    sequence=2048,
)

PROGRAMS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "perceptrons, 24 layers, width 8192": (perceptrons, ("off", "offload{exposed=10}")),
    "the same, `jax.checkpoint` with its policy for the host": (
        lambda sharding: perceptrons(sharding, by_hand=True),
        ("off",),
    ),
    "perceptrons, 24 layers, width 16384, which fill the device": (
        lambda sharding: perceptrons(sharding, width=16384),
        ("off", "offload"),
    ),
    "GPT, 24 layers, width 768, `dots_saveable`": (
        _SMALL.lower,
        ("off", "offload", "offload{exposed=10}"),
    ),
    "GPT, 32 layers, width 4096, `dots_saveable`": (
        _LARGE.lower,
        ("off", "offload", "offload{exposed=10}"),
    ),
}
"""By what a table calls it, how a program is lowered and the specs that it is compiled with."""
