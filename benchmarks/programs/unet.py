"""A U-Net: four levels down, three up, skip connections between them, SiLU and layer norms."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, Parameters, convolve, shaped

BATCH, SIZE = 16, 128
CHANNELS = (64, 128, 256, 512)


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of a loss in bfloat16, unrolled, and its arguments."""
    block = checkpoint(_block)

    def loss(parameters: Parameters, images: jax.Array) -> jax.Array:
        x = convolve(images, parameters["first"])
        skipped = []
        for kernels in parameters["down"]:
            x = block(x, kernels)
            skipped.append(x)
            x = x[:, ::2, ::2]
        x = skipped.pop()
        for kernels in parameters["up"]:
            x = block(jnp.concatenate([_doubled(x), skipped.pop()], axis=-1), kernels)
        return (convolve(x, parameters["last"]).astype("float32") ** 2).mean()

    down = zip((CHANNELS[0], *CHANNELS[:-1]), CHANNELS, strict=True)
    up = [(deep + shallow, shallow) for shallow, deep in pairwise(CHANNELS)]
    parameters = {
        "first": _kernel(4, CHANNELS[0]),
        "down": [(_kernel(i, o), _kernel(o, o)) for i, o in down],
        "up": [(_kernel(i, o), _kernel(o, o)) for i, o in reversed(up)],
        "last": _kernel(CHANNELS[0], 4),
    }
    images = shaped(BATCH, SIZE, SIZE, 4, dtype="bfloat16")
    return jax.value_and_grad(loss), (parameters, images)


def _kernel(inner: int, outer: int) -> jax.ShapeDtypeStruct:
    return shaped(3, 3, inner, outer, dtype="bfloat16")


def _block(x: jax.Array, kernels: tuple[jax.Array, ...]) -> jax.Array:
    for kernel in kernels:
        wide = convolve(x, kernel).astype("float32")
        centered = wide - wide.mean((1, 2, 3), keepdims=True)
        scale = jax.lax.rsqrt(wide.var((1, 2, 3), keepdims=True) + 1e-5)
        x = jax.nn.silu(centered * scale).astype("bfloat16")
    return x


def _doubled(x: jax.Array) -> jax.Array:
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
