"""A diffusion model's U-Net: residual blocks told the time, attention where images are small."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, Parameters, convolve, shaped

BATCH, SIZE = 16, 64
CHANNELS = (128, 256, 512)
ATTENTION_FROM = 1
"""The first level, counted from the largest images, whose blocks end in attention."""
HEADS, GROUPS, TIME = 8, 32, 512


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of the error in the noise found, bfloat16, unrolled, and its arguments."""
    block = checkpoint(_block)

    def loss(
        parameters: Parameters, images: jax.Array, noise: jax.Array, times: jax.Array
    ) -> jax.Array:
        kept = jnp.cos(times * jnp.pi / 2).astype(images.dtype)[:, None, None, None]
        x = convolve(kept * images + jnp.sqrt(1 - kept * kept) * noise, parameters["first"])
        told = jax.nn.silu(_embedded(times) @ parameters["time"])
        skipped = []
        for level in parameters["down"]:
            x = block(x, told, level)
            skipped.append(x)
            x = x[:, ::2, ::2]
        x = block(x, told, parameters["middle"])
        for level in parameters["up"]:
            x = block(jnp.concatenate([_doubled(x), skipped.pop()], axis=-1), told, level)
        found = convolve(jax.nn.silu(x), parameters["last"])
        return ((found - noise).astype("float32") ** 2).mean()

    inner = (CHANNELS[0], *CHANNELS[:-1])
    down = list(zip(inner, CHANNELS, strict=True))
    deepest = CHANNELS[-1]
    up = [(2 * deepest, deepest), *((d + s, s) for s, d in reversed(list(pairwise(CHANNELS))))]
    parameters: Parameters = {
        "first": _half(3, 3, 4, CHANNELS[0]),
        "time": _half(TIME, TIME),
        "down": [_level(i, o, depth) for depth, (i, o) in enumerate(down)],
        "middle": _level(deepest, deepest, len(CHANNELS)),
        "up": [_level(i, o, len(CHANNELS) - 1 - number) for number, (i, o) in enumerate(up)],
        "last": _half(3, 3, CHANNELS[0], 4),
    }
    images = _half(BATCH, SIZE, SIZE, 4)
    return jax.value_and_grad(loss), (parameters, images, images, shaped(BATCH))


def _half(*shape: int) -> jax.ShapeDtypeStruct:
    return shaped(*shape, dtype="bfloat16")


def _level(inner: int, outer: int, depth: int) -> Parameters:
    """What a block at a depth has."""
    level: Parameters = {
        "enter": _half(3, 3, inner, outer),
        "leave": _half(3, 3, outer, outer),
        "time": _half(TIME, outer),
        "shortcut": _half(1, 1, inner, outer),
    }
    if depth >= ATTENTION_FROM:
        level |= {"query_key_value": _half(outer, 3 * outer), "out": _half(outer, outer)}
    return level


def _block(x: jax.Array, told: jax.Array, p: Parameters) -> jax.Array:
    y = convolve(jax.nn.silu(_normalize(x)), p["enter"]) + (told @ p["time"])[:, None, None]
    y = convolve(jax.nn.silu(_normalize(y)), p["leave"]) + convolve(x, p["shortcut"])
    return y + _attention(_normalize(y), p) if "out" in p else y


def _attention(x: jax.Array, p: Parameters) -> jax.Array:
    batch, rows, columns, channels = x.shape
    projected = (x @ p["query_key_value"]).reshape(batch, rows * columns, 3, HEADS, -1)
    query, key, value = projected.transpose(2, 0, 3, 1, 4)
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key).astype("float32")
    weights = jax.nn.softmax(scores / query.shape[-1] ** 0.5).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bhkd->bqhd", weights, value)
    return mixed.reshape(batch, rows, columns, channels) @ p["out"]


def _normalize(x: jax.Array) -> jax.Array:
    """Groups of channels, each of one variance."""
    wide = x.astype("float32").reshape(*x.shape[:3], GROUPS, -1)
    centered = wide - wide.mean((1, 2, 4), keepdims=True)
    scale = jax.lax.rsqrt(wide.var((1, 2, 4), keepdims=True) + 1e-5)
    return (centered * scale).reshape(x.shape).astype(x.dtype)


def _embedded(times: jax.Array) -> jax.Array:
    """Sines and cosines of the time, by frequency."""
    frequencies = 10_000.0 ** (-jnp.arange(TIME // 2) / (TIME // 2))
    angles = 1000 * times[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype("bfloat16")


def _doubled(x: jax.Array) -> jax.Array:
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
