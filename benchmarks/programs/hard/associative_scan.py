"""State-space layers, unrolled: each a gated linear recurrence by `jax.lax.associative_scan`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, Parameters, cross_entropy, shaped

LAYERS, WIDTH, STATE, VOCABULARY = 4, 512, 1024, 8192
BATCH, SEQUENCE = 8, 1024


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of a language model's loss in float32, and its arguments."""
    layer = checkpoint(_layer)

    def loss(parameters: Parameters, tokens: jax.Array) -> jax.Array:
        stream = parameters["embedding"][tokens]
        for each in parameters["layers"]:
            stream = layer(stream, each)
        logits = _normalize(stream) @ parameters["embedding"].T
        return cross_entropy(logits, jnp.roll(tokens, -1, axis=1))

    layers = {
        "enter": shaped(WIDTH, STATE),
        "forget": shaped(WIDTH, STATE),
        "update": shaped(WIDTH, STATE),
        "gate": shaped(WIDTH, STATE),
        "decay": shaped(STATE),
        "out": shaped(STATE, WIDTH),
    }
    parameters: Parameters = {
        "embedding": shaped(VOCABULARY, WIDTH),
        "layers": [layers] * LAYERS,
    }
    return jax.value_and_grad(loss), (parameters, shaped(BATCH, SEQUENCE, dtype="int32"))


def _layer(stream: jax.Array, p: Parameters) -> jax.Array:
    normed = _normalize(stream)
    log_kept = -jax.nn.softplus(p["decay"]) * jax.nn.sigmoid(normed @ p["forget"])
    kept = jnp.exp(log_kept)
    # What enters is scaled so that the state's variance stays.
    entering = jnp.sqrt(-jnp.expm1(2 * log_kept) + 1e-6) * jax.nn.sigmoid(normed @ p["enter"])
    _, state = jax.lax.associative_scan(_combine, (kept, entering * (normed @ p["update"])), axis=1)
    return stream + (state * jax.nn.gelu(normed @ p["gate"])) @ p["out"]


def _combine(
    before: tuple[jax.Array, jax.Array], after: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Two steps of the recurrence `state = kept * state + entering` as one."""
    kept, entering = before
    kept_after, entering_after = after
    return kept_after * kept, kept_after * entering + entering_after


def _normalize(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
