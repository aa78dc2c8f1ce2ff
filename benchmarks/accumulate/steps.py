"""The steps that are compiled: the benchmarks' GPT with Adam, whole, and with a loop of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.programs.gpt import Gpt

MICROBATCHES = 8

Tree = Any


def lower(
    *,
    scanned: bool,
    sharding: NamedSharding,
    accumulator: str | None = None,
    moments: str = "bfloat16",
) -> Any:
    """The step on one device.

    Args:
      scanned: the layers are in a scan.
      sharding: the device.
      accumulator: None for the whole batch at once; for a loop over microbatches as users write
        it, in what it adds gradients up: "float32", or "bfloat16", which is their own type.
      moments: in what Adam's moments are.
    """
    model = Gpt(scanned=scanned)
    parameters = model.parameters(sharding)
    wide = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, moments), parameters)
    state = _placed(_state_of(wide), lambda shape: sharding)
    return _lowered(model, parameters, state, model.tokens(sharding), accumulator)


def lower_on_devices(mesh: Mesh, *, scanned: bool, fully_sharded: bool) -> Any:
    """The step on several devices, with as many tokens on each as `lower` has on one.

    Activations are held to the devices of their examples.
    Fully sharded, each device has a part of each parameter and of the optimizer's state; else all
    of it.
    """
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    model = Gpt(scanned=scanned, batch=Gpt(scanned).batch * mesh.size, held=rows)

    place = partial(_by_rows, mesh) if fully_sharded else partial(_whole, mesh)
    parameters = _placed(model.parameters(), place)
    state = _placed(_state_of(parameters), place)
    return _lowered(model, parameters, state, model.tokens(rows), None)


def lower_gradients(mesh: Mesh, *, scanned: bool) -> Any:
    """The loss and the gradients of 4 layers of width 1024, on several devices, fully sharded.

    Each device has 8 examples of 512 tokens.
    """
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    model = Gpt(scanned, held=rows, layers=4, width=1024, batch=8 * mesh.size, sequence=512)
    parameters = _placed(model.parameters(), partial(_by_rows, mesh))
    placed = jax.tree.map(lambda leaf: leaf.sharding, parameters)
    step = jax.jit(jax.value_and_grad(model.loss), out_shardings=(None, placed))
    return step.lower(parameters, model.tokens(rows))


def _by_rows(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
    """Of a matrix, or a stack of them, each device has a part of the rows."""
    axes: list[str | None] = [None] * len(shape)
    if len(shape) > 1:
        axes[-2] = mesh.axis_names[0]
    return NamedSharding(mesh, PartitionSpec(*axes))


def _whole(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*[None] * len(shape)))


def _placed(tree: Tree, place: Callable[[tuple[int, ...]], NamedSharding]) -> Tree:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place(leaf.shape)), tree
    )


def _state_of(parameters: Tree) -> Tree:
    return jax.eval_shape(_OPTIMIZER.init, parameters)


def _lowered(
    model: Gpt, parameters: Tree, state: Tree, tokens: Any, accumulator: str | None
) -> Any:
    gradients_of = jax.value_and_grad(model.loss)
    if accumulator is not None:
        gradients_of = _accumulated(model, accumulator)

    def train(parameters: Tree, state: Tree, tokens: jax.Array) -> tuple[Tree, Tree, jax.Array]:
        loss, gradients = gradients_of(parameters, tokens)
        updates, state = _OPTIMIZER.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    return jax.jit(train, donate_argnums=(0, 1)).lower(parameters, state, tokens)


def _accumulated(model: Gpt, accumulator: str) -> Callable[[Tree, jax.Array], tuple[Any, Tree]]:
    """The loss and the gradients, added up over microbatches in a `lax.scan`."""
    part = dataclasses.replace(model, batch=model.batch // MICROBATCHES)

    def gradients_of(parameters: Tree, tokens: jax.Array) -> tuple[Any, Tree]:
        def body(sums: Tree, tokens: jax.Array) -> tuple[Tree, None]:
            found = jax.value_and_grad(part.loss)(parameters, tokens)
            return jax.tree.map(lambda one, other: one + other.astype(one.dtype), sums, found), None

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, accumulator), parameters)
        parts = tokens.reshape(MICROBATCHES, -1, model.sequence)
        (loss, sums), _ = jax.lax.scan(body, (jnp.float32(0), zeros), parts)
        return loss / MICROBATCHES, jax.tree.map(
            lambda leaf, sum_: (sum_ / MICROBATCHES).astype(leaf.dtype), parameters, sums
        )

    return gradients_of


_OPTIMIZER = optax.adam(1e-3)
