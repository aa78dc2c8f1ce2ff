"""Layers of one activation each, of which XLA keeps some for the backward pass and repeats some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": jax.nn.gelu,
    "gelu by erf": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "elu": jax.nn.elu,
    "mish": jax.nn.mish,
    "sin": jnp.sin,
    "relu squared": lambda x: jnp.square(jax.nn.relu(x)),
}
TYPES = (jnp.float32, jnp.bfloat16)
LAYERS, ROWS, WIDTH = 6, 4096, 1024

Weights = tuple[jax.Array, jax.Array, jax.Array]


def lowered(sharding: Any) -> Iterator[tuple[str, Any]]:
    """Yields each activation's title and the lowered gradient of `LAYERS` residual layers with it,
    unrolled, with biases, for the device of a sharding."""
    for dtype in TYPES:
        place = partial(jax.ShapeDtypeStruct, dtype=dtype, sharding=sharding)
        layer = place((WIDTH, 4 * WIDTH)), place((4 * WIDTH,)), place((4 * WIDTH, WIDTH))
        for name, activation in ACTIVATIONS.items():
            step = jax.jit(jax.value_and_grad(partial(_loss, activation)))
            title = f"{name}, {jnp.dtype(dtype).name}"
            yield title, step.lower([layer] * LAYERS, place((ROWS, WIDTH)))


def _loss(
    activation: Callable[[jax.Array], jax.Array], layers: Sequence[Weights], x: jax.Array
) -> jax.Array:
    for up, bias, down in layers:
        x = x + activation(x @ up + bias) @ down
    return jnp.square(x.astype(jnp.float32)).mean()
