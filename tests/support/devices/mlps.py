"""A training step over 4x2 devices whose activations lack a sharding constraint, or have it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from support.devices.meshes import mesh_of

TOKENS, WIDTH, HIDDEN, BATCH, LENGTH, LAYERS = 512, 128, 512, 32, 64, 2


def lowered(*, constrained: bool) -> Any:
    """The step, its parameters split over both axes as FSDP with tensor parallelism has them.

    Without a constraint the embeddings are split along their features, as the table is, and so is
    what each layer makes of them: every product sums over the devices.
    """
    mesh = mesh_of(AxisType.Auto, data=4, model=2)

    def shaped(shape: tuple[int, ...], dtype: str, *axes: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes))
        )

    def loss(parameters: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
        x = parameters["table"][tokens]  # the line that lacks a constraint
        if constrained:
            x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("data")))
        for _ in range(LAYERS):
            normed = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
            hidden = jnp.tanh(normed * parameters["gain"] @ parameters["up"])
            x += hidden @ parameters["down"]
        return jnp.mean(x**2)

    parameters = {
        "gain": shaped((WIDTH,), "float32"),
        "table": shaped((TOKENS, WIDTH), "float32", "model", "data"),
        "up": shaped((WIDTH, HIDDEN), "float32", "data", "model"),
        "down": shaped((HIDDEN, WIDTH), "float32", "model", "data"),
    }
    tokens = shaped((BATCH, LENGTH), "int32", "data")
    return jax.jit(jax.value_and_grad(loss)).lower(parameters, tokens)
