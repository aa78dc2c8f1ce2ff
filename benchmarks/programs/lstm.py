"""Two LSTM layers over time, each a scan of 256 steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, shaped

BATCH, STEPS, WIDTH = 64, 256, 512

State = tuple[jax.Array, jax.Array]


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of a loss in float32, and its arguments."""
    cell = checkpoint(_cell)

    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        zero = jnp.zeros((BATCH, WIDTH))
        for kernel in kernels:
            _, x = jax.lax.scan(partial(cell, kernel=kernel), (zero, zero), x)
        return (x**2).mean()

    kernels = [shaped(2 * WIDTH, 4 * WIDTH)] * 2
    return jax.value_and_grad(loss), (kernels, shaped(STEPS, BATCH, WIDTH))


def _cell(state: State, x: jax.Array, kernel: jax.Array) -> tuple[State, jax.Array]:
    hidden, memory = state
    gates = jnp.concatenate([x, hidden], axis=-1) @ kernel
    enter, forget, leave, update = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(update)
    hidden = jax.nn.sigmoid(leave) * jnp.tanh(memory)
    return (hidden, memory), hidden
