"""A layer of experts whose tokens are sorted by expert, and ragged products by themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Arguments = tuple[Any, ...]


def layer_gradient(weights: dict[str, Any], x: Any, target: Any) -> Any:
    """The gradients of a layer that sends each token to its best expert, and drops none.

    Experts have one hidden layer, of rectified numbers, as in a Switch Transformer.
    """

    def loss(weights: dict[str, Any], x: Any) -> Any:
        scores = jax.nn.softmax(x @ weights["gate"])
        expert = jnp.argmax(scores, axis=-1)
        order = jnp.argsort(expert)
        sizes = jnp.bincount(expert, length=scores.shape[-1])
        hidden = jax.nn.relu(jax.lax.ragged_dot(x[order], weights["up"], sizes))
        made = jax.lax.ragged_dot(hidden, weights["down"], sizes)
        back = jnp.zeros_like(x).at[order].set(made)
        weight = jnp.take_along_axis(scores, expert[:, None], axis=-1)
        return jnp.mean((x + weight * back - target) ** 2)

    return jax.grad(loss, (0, 1))(weights, x)


def layer_arguments(experts: int, tokens: int, width: int, hidden: int) -> Arguments:
    """Normal numbers in float32."""
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(draw.normal(size=shape, scale=shape[-2] ** -0.5), jnp.float32)

    weights = {
        "gate": normal(width, experts),
        "up": normal(experts, width, hidden),
        "down": normal(experts, hidden, width),
    }
    return weights, normal(tokens, width), normal(tokens, width)


def product_gradients(x: Any, w: Any, sizes: Any) -> Any:
    """Both gradients of the sum of a ragged product."""

    def loss(x: Any, w: Any) -> Any:
        return jax.lax.ragged_dot(x, w, sizes).astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1))(x, w)


def product_arguments(
    experts: int, tokens: int, width: int, hidden: int, sharding: Any
) -> Arguments:
    """Shapes in bfloat16, for a compile."""

    def shape(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    return (
        shape(jnp.bfloat16, tokens, width),
        shape(jnp.bfloat16, experts, width, hidden),
        shape(jnp.int32, experts),
    )
