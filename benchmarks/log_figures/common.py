"""What the steps have in common: a loss, an update, and shapes of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Program = tuple[Callable[..., Any], tuple[Any, ...]]
"""A step, and the shapes of its arguments."""

RATE = 1e-3


def supervised(model: Any, inputs: Any, optimizer: Any) -> Program:
    """A step of a linen module: state, and a batch of inputs with labels."""
    parameters = jax.eval_shape(model.init, jax.random.key(0), inputs)
    state = parameters, jax.eval_shape(optimizer.init, parameters)

    def step(state: Any, batch: Any) -> Any:
        (parameters, optimizing), (inputs, labels) = state, batch

        def loss(parameters: Any) -> jax.Array:
            return cross_entropy(model.apply(parameters, inputs), labels)

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, optimizing = optimizer.update(gradients, optimizing, parameters)
        return (optax.apply_updates(parameters, updates), optimizing), value

    return step, (state, (inputs, integers(inputs.shape[0])))


def trained(loss: Callable[..., jax.Array], parameters: Any, optimizer: Any, *data: Any) -> Program:
    """A step that updates the loss's first argument."""

    def step(parameters: Any, optimizing: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        updates, optimizing = optimizer.update(gradients, optimizing, parameters)
        return optax.apply_updates(parameters, updates), optimizing, value

    return step, (parameters, jax.eval_shape(optimizer.init, parameters), *data)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def key() -> Any:
    return jax.eval_shape(jax.random.key, 0)


def shapes(tree: Any) -> Any:
    return jax.eval_shape(lambda: tree)
