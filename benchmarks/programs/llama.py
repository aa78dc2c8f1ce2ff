"""A Llama-style model: rotary positions, grouped-query attention, SwiGLU, scanned layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, Parameters, cross_entropy, shaped

LAYERS, WIDTH, HEADS, GROUPS, HIDDEN, VOCABULARY = 8, 1024, 16, 4, 2816, 32_000
BATCH, SEQUENCE = 4, 1024
HEAD = WIDTH // HEADS


def program(
    checkpoint: Checkpoint, *, vocabulary: int | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of the loss, float32 parameters used as bfloat16, and its arguments."""
    vocabulary = vocabulary or VOCABULARY
    layer = checkpoint(_layer)

    def loss(parameters: Parameters, tokens: jax.Array) -> jax.Array:
        cast = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), parameters)
        stream = cast["embedding"][tokens]
        stream, _ = jax.lax.scan(lambda c, p: (layer(c, p), None), stream, cast["layers"])
        logits = _normalize(stream, cast["gain"]) @ cast["out"]
        return cross_entropy(logits, jnp.roll(tokens, -1, axis=1))

    grouped = GROUPS * HEAD
    shapes = {
        "attention_gain": (WIDTH,),
        "perceptron_gain": (WIDTH,),
        "query": (WIDTH, WIDTH),
        "key": (WIDTH, grouped),
        "value": (WIDTH, grouped),
        "attention_out": (WIDTH, WIDTH),
        "gate": (WIDTH, HIDDEN),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    parameters: Parameters = {
        "embedding": shaped(vocabulary, WIDTH),
        "out": shaped(WIDTH, vocabulary),
        "gain": shaped(WIDTH),
        "layers": {name: shaped(LAYERS, *shape) for name, shape in shapes.items()},
    }
    return jax.value_and_grad(loss), (parameters, shaped(BATCH, SEQUENCE, dtype="int32"))


def _layer(stream: jax.Array, p: Parameters) -> jax.Array:
    normed = _normalize(stream, p["attention_gain"])
    query = _rotate(_heads(normed @ p["query"], HEADS))
    key = _rotate(_heads(normed @ p["key"], GROUPS))
    value = _heads(normed @ p["value"], GROUPS)
    query = query.reshape(BATCH, SEQUENCE, GROUPS, HEADS // GROUPS, HEAD)
    scores = jnp.einsum("btkgd,bskd->bkgts", query, key).astype("float32") / HEAD**0.5
    causal = jnp.arange(SEQUENCE)[:, None] >= jnp.arange(SEQUENCE)
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(stream.dtype)
    mixed = jnp.einsum("bkgts,bskd->btkgd", weights, value).reshape(stream.shape)
    stream = stream + mixed @ p["attention_out"]
    normed = _normalize(stream, p["perceptron_gain"])
    return stream + (jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])) @ p["down"]


def _heads(x: jax.Array, count: int) -> jax.Array:
    return x.reshape(BATCH, SEQUENCE, count, HEAD)


def _rotate(x: jax.Array) -> jax.Array:
    frequencies = 10_000.0 ** (-2.0 * jnp.arange(HEAD // 2) / HEAD)
    angles = (jnp.arange(SEQUENCE)[:, None] * frequencies)[None, :, None, :]
    left, right = jnp.split(x.astype("float32"), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1).astype(x.dtype)


def _normalize(x: jax.Array, gain: jax.Array) -> jax.Array:
    wide = x.astype("float32")
    scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype) * gain
