"""What the benchmark programs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Parameters = dict[str, Any]
Block = Callable[..., Any]
Checkpoint = Callable[[Block], Block]
"""Wraps a block of a model: `jax.checkpoint` with some policy, or nothing."""


def policy_named(name: str) -> Any:
    """A policy of `jax.checkpoint_policies`; one that offloads does so to the host's memory."""
    found = getattr(jax.checkpoint_policies, name)
    return found("device", "pinned_host") if name.startswith("offload_") else found


def checkpoint_with(policy: str | None, *, prevent_cse: bool) -> Checkpoint:
    """`jax.checkpoint` with a policy of `jax.checkpoint_policies`; None leaves blocks alone."""
    if policy is None:
        return lambda block: block
    chosen = policy_named(policy)
    return lambda block: jax.checkpoint(block, policy=chosen, prevent_cse=prevent_cse)


def shaped(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean over all targets, in float32."""
    logits = logits.astype("float32")
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """A convolution of `[batch, row, column, channel]` with the same padding on all sides."""
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
