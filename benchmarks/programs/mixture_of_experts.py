"""A mixture of experts, every token through all of them and weighed by its two best."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, Parameters, shaped

LAYERS, WIDTH, EXPERTS, HIDDEN = 6, 512, 8, 1024
BATCH, SEQUENCE = 8, 512


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of a loss in bfloat16, layers in a scan, and its arguments."""
    layer = checkpoint(_layer)

    def loss(parameters: Parameters, x: jax.Array) -> jax.Array:
        stream, _ = jax.lax.scan(lambda c, p: (layer(c, p), None), x, parameters)
        return (stream.astype("float32") ** 2).mean()

    def stacked(*shape: int) -> jax.ShapeDtypeStruct:
        return shaped(LAYERS, *shape, dtype="bfloat16")

    parameters = {
        "gain": stacked(WIDTH),
        "router": stacked(WIDTH, EXPERTS),
        "up": stacked(EXPERTS, WIDTH, HIDDEN),
        "down": stacked(EXPERTS, HIDDEN, WIDTH),
    }
    return jax.value_and_grad(loss), (parameters, shaped(BATCH, SEQUENCE, WIDTH, dtype="bfloat16"))


def _layer(stream: jax.Array, p: Parameters) -> jax.Array:
    wide = stream.astype("float32")
    scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    normed = (wide * scale).astype(stream.dtype) * p["gain"]
    gates = jax.nn.softmax((normed @ p["router"]).astype("float32"), axis=-1)
    best, chosen = jax.lax.top_k(gates, 2)
    one_hot = jax.nn.one_hot(chosen, EXPERTS, dtype=stream.dtype)
    weights = (one_hot * best[..., None].astype(stream.dtype)).sum(-2)
    hidden = jax.nn.gelu(jnp.einsum("btd,edf->btef", normed, p["up"]))
    return stream + jnp.einsum("btef,efd,bte->btd", hidden, p["down"], weights)
