"""Layers that exchange rows with their peers, or read their memory, by hloom's own CUDA kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh, PartitionSpec

from benchmarks.programs.common import shaped
from hloom.runtime import register

LAYERS, ROWS, WIDTH = 4, 64, 64

STAND_IN = "hloom.token.v1"
"""A kernel that XLA knows to compile for, in the place of one that reads its peers' memory."""

Layer = Callable[[str, int, jax.Array, jax.Array], jax.Array]
"""Of the axis of the devices, how many there are, the kernel matrix and the rows of one."""


def program(
    layer: Layer, mesh: Mesh, *, scanned: bool
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The layers one after the other, or as a loop, and their arguments; the last are the rows."""
    register([STAND_IN], "cuda")
    [axis] = mesh.axis_names
    apply = partial(layer, axis, mesh.size)

    def stack(kernel: jax.Array, x: jax.Array) -> jax.Array:
        if scanned:
            return jax.lax.scan(lambda x, _: (apply(kernel, x), None), x, length=LAYERS)[0]
        for _ in range(LAYERS):
            x = apply(kernel, x)
        return x

    rows = PartitionSpec(axis)
    mapped = jax.shard_map(
        stack, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows, check_vma=False
    )
    return mapped, (shaped(WIDTH, WIDTH), shaped(ROWS * mesh.size, WIDTH))


def exchange(axis: str, devices: int, kernel: jax.Array, x: jax.Array) -> jax.Array:
    """A matrix product and a ragged all-to-all."""
    offsets = jnp.arange(devices, dtype=jnp.int32) * 2
    sizes = jnp.full(devices, 2, jnp.int32)
    y = jnp.tanh(x @ kernel)
    return jax.lax.ragged_all_to_all(
        y, jnp.zeros_like(y), offsets, sizes, offsets, sizes, axis_name=axis
    )


def exchange_and_sum(axis: str, devices: int, kernel: jax.Array, x: jax.Array) -> jax.Array:
    """The same, and an all-reduce of XLA's."""
    return jax.lax.psum(exchange(axis, devices, kernel, x), axis) / devices


def between_barriers(axis: str, devices: int, kernel: jax.Array, x: jax.Array) -> jax.Array:
    """A matrix product and a kernel that waits for its peers before and behind."""
    y = jnp.tanh(x @ kernel)
    with set_xla_metadata(**{"hloom.collective": "entry exit=after"}):
        result = jax.ffi.ffi_call(STAND_IN, jax.ShapeDtypeStruct((), "uint32"))(y)
    return y + result.astype(x.dtype)
