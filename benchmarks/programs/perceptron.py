"""A training step of a small perceptron, with or without a call of the host in its middle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from benchmarks.programs.common import shaped

BATCH, WIDTH, LAYERS = 512, 256, 4
RATE = 1e-3

_CALLBACK = "xla_ffi_python_gpu_callback"
"""What `jax.debug.callback` and `jax.pure_callback` become on a GPU. Called by its name here: JAX
lowers those only where there is a GPU to run them."""

Layers = list[tuple[jax.Array, jax.Array]]


def program(
    host_call: str = "", mesh: Mesh | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """One step of gradient descent in float32, and its arguments; the last two are the data.

    Args:
      host_call: "tell", to hand the loss to the host between the forward and the backward pass;
        "ask", to have the host say how much to scale the gradients; or nothing.
      mesh: the devices, each of which calls the host; None for one device.
    """

    call = partial(call_host, mesh)

    def loss_of(layers: Layers, x: jax.Array, y: jax.Array) -> jax.Array:
        for kernel, bias in layers:
            x = jnp.tanh(x @ kernel + bias)
        return ((x - y) ** 2).mean()

    def step(layers: Layers, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Layers]:
        loss, gradients = jax.value_and_grad(loss_of)(layers, x, y)
        rate: Any = RATE
        if host_call == "tell":
            call((), loss)
        elif host_call == "ask":
            rate = RATE * call(jax.ShapeDtypeStruct((), "float32"), loss)
        updated = jax.tree.map(lambda old, gradient: old - rate * gradient, layers, gradients)
        return loss, updated

    layer = (shaped(WIDTH, WIDTH), shaped(WIDTH))
    return step, ([layer] * LAYERS, shaped(BATCH, WIDTH), shaped(BATCH, WIDTH))


def call_host(mesh: Mesh | None, result: Any, value: jax.Array) -> Any:
    """Hands a value to the host, from each device of a mesh, and gives its answer.

    Args:
      mesh: the devices; None for one.
      result: shape and type of the answer; () where there is none.
      value: what the host is told, equal on all devices.
    """
    call = partial(jax.ffi.ffi_call(_CALLBACK, result, has_side_effect=True), index=np.uint64(0))
    if mesh is None or mesh.size == 1:
        return call(value)
    everywhere = PartitionSpec()
    specs = jax.tree.map(lambda _: everywhere, result)
    on_each = jax.shard_map(call, mesh=mesh, in_specs=everywhere, out_specs=specs, check_vma=False)
    return on_each(value)
