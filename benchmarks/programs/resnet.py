"""ResNet-50 on 224 by 224 images, batch norm in float32, everything else in bfloat16."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, Parameters, convolve, shaped

BATCH = 64
STAGES = ((64, 256, 3, 1), (128, 512, 4, 2), (256, 1024, 6, 2), (512, 2048, 3, 2))
"""Inner channels, outer channels, blocks, stride of the first block."""


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of a loss, blocks unrolled, and its arguments."""
    strides = [s if i == 0 else 1 for _, _, count, s in STAGES for i in range(count)]

    def loss(parameters: Parameters, images: jax.Array) -> jax.Array:
        x = jax.nn.relu(convolve(images, parameters["stem"], 2))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for block, stride in zip(parameters["blocks"], strides, strict=True):
            x = checkpoint(lambda x, p, stride=stride: _block(x, p, stride))(x, block)
        return (x.mean((1, 2)) @ parameters["head"]).astype("float32").var()

    parameters = {
        "stem": _half(7, 7, 3, 64),
        "blocks": _block_shapes(),
        "head": _half(2048, 1000),
    }
    return jax.value_and_grad(loss), (parameters, _half(BATCH, 224, 224, 3))


def _half(*shape: int) -> jax.ShapeDtypeStruct:
    return shaped(*shape, dtype="bfloat16")


def _block_shapes() -> list[Parameters]:
    blocks: list[Parameters] = []
    channels = 64
    for inner, outer, count, _ in STAGES:
        for number in range(count):
            block: Parameters = {
                "kernels": [
                    _half(1, 1, channels, inner),
                    _half(3, 3, inner, inner),
                    _half(1, 1, inner, outer),
                ],
                "norms": [(_half(c), _half(c)) for c in (inner, inner, outer)],
            }
            if number == 0:
                block["shortcut"] = _half(1, 1, channels, outer)
            blocks.append(block)
            channels = outer
    return blocks


def _block(x: jax.Array, p: Parameters, stride: int) -> jax.Array:
    first, second, third = p["kernels"]
    y = jax.nn.relu(_normalize(convolve(x, first), *p["norms"][0]))
    y = jax.nn.relu(_normalize(convolve(y, second, stride), *p["norms"][1]))
    y = _normalize(convolve(y, third), *p["norms"][2])
    shortcut = convolve(x, p["shortcut"], stride) if "shortcut" in p else x
    return jax.nn.relu(y + shortcut)


def _normalize(x: jax.Array, gain: jax.Array, bias: jax.Array) -> jax.Array:
    wide = x.astype("float32")
    mean = wide.mean((0, 1, 2))
    variance = (wide * wide).mean((0, 1, 2)) - mean * mean
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + bias).astype(x.dtype)
