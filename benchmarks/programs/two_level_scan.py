"""A scan of scans: six groups of six layers, float32."""

from __future__ import annotations

from typing import Any

import jax

from benchmarks.programs.common import Checkpoint, shaped

GROUPS, LAYERS, WIDTH, BATCH = 6, 6, 1024, 256


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of a loss in float32, and its arguments; the inner layers are the blocks."""
    layer = checkpoint(_layer)

    def loss(parameters: jax.Array, x: jax.Array) -> jax.Array:
        def group(stream: jax.Array, kernels: jax.Array) -> tuple[jax.Array, None]:
            stream, _ = jax.lax.scan(lambda c, k: (layer(c, k), None), stream, kernels)
            return stream, None

        stream, _ = jax.lax.scan(group, x, parameters)
        return (stream**2).mean()

    parameters = shaped(GROUPS, LAYERS, WIDTH, WIDTH)
    return jax.value_and_grad(loss), (parameters, shaped(BATCH, WIDTH))


def _layer(stream: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.nn.gelu(stream @ kernel) + stream
