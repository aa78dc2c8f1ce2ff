"""Blocks of tensor parallelism in `shard_map`: gathered before, summed and scattered after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "device"
TOKENS, WIDTH, HIDDEN, HEADS, LAYERS = 8192, 4096, 16384, 32, 2
SEQUENCE = 2048

Block = Callable[..., jax.Array]


def gathered(x: jax.Array) -> jax.Array:
    """The tokens of all devices."""
    return jax.lax.all_gather(x, AXIS, tiled=True)


def scattered(x: jax.Array) -> jax.Array:
    """The sum over devices, of which each has its tokens."""
    return jax.lax.psum_scatter(x, AXIS, tiled=True)


def mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """An MLP of tokens that are split over the devices, as its hidden units are."""
    return scattered(jax.nn.gelu(gathered(x) @ up) @ down)


def summed_mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Two MLPs of tokens that every device has: each ends with an all-reduce."""
    x = jax.lax.psum(jax.nn.gelu(x @ up) @ down, AXIS)
    return jax.lax.psum(jax.nn.gelu(x @ up) @ down, AXIS)


def attention(x: jax.Array, qkv: jax.Array, out: jax.Array) -> jax.Array:
    """Attention whose heads are split over the devices; its weights are [3, width, heads]."""
    whole = gathered(x)
    q, k, v = (_heads(whole @ qkv[number]) for number in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5)
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return scattered(mixed.reshape(whole.shape[0], -1) @ out)


def _heads(x: jax.Array) -> jax.Array:
    size = min(WIDTH // HEADS, x.shape[1])
    return x.reshape(-1, min(SEQUENCE, x.shape[0]), x.shape[1] // size, size)


def quantised_mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """An MLP whose first product is in fp8, with a scale of the whole tensor."""
    (x8, of_x), (up8, of_up) = map(_quantised, (gathered(x), up))
    product = jnp.dot(x8, up8, preferred_element_type=jnp.float32) * (of_x * of_up)
    return scattered(jax.nn.gelu(product.astype(x.dtype)) @ down)


def _quantised(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    largest = jnp.max(jnp.abs(x)).astype(jnp.float32)
    scale = jnp.maximum(largest, 1e-12) / 448.0
    return (x / scale.astype(x.dtype)).astype(jnp.float8_e4m3fn), scale


def layers(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """MLPs in a scan, their weights stacked."""

    def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return x + mlp(x, *weights), None

    return jax.lax.scan(layer, x, (up, down))[0]


@dataclass(frozen=True)
class Program:
    """A block, how its arguments are split, and whether its gradient is taken too."""

    block: Block
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[P, ...]
    gradient: bool = False

    def lower(self, mesh: Mesh, dtype: Any = jnp.bfloat16) -> Any:
        """The program for the devices of a mesh of one axis."""
        arguments = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
            for shape, spec in zip(self.shapes, self.specs, strict=True)
        ]
        return jax.jit(self.function(mesh)).lower(*arguments)

    def function(self, mesh: Mesh) -> Callable[..., Any]:
        """What is run."""
        block = jax.shard_map(self.block, mesh=mesh, in_specs=self.specs, out_specs=self.specs[0])
        if not self.gradient:
            return block

        def loss(*arguments: jax.Array) -> jax.Array:
            return jnp.sum(block(*arguments).astype(jnp.float32) ** 2)

        return jax.value_and_grad(loss, argnums=tuple(range(len(self.specs))))


def programs(tokens: int = TOKENS, width: int = WIDTH, hidden: int = HIDDEN) -> dict[str, Program]:
    """The blocks by name."""
    of_mlp = ((tokens, width), (width, hidden), (hidden, width))
    of_attention = ((tokens, width), (3, width, width), (width, width))
    of_layers = ((tokens, width), (LAYERS, width, hidden), (LAYERS, hidden, width))
    split = (P(AXIS), P(None, AXIS), P(AXIS))
    heads = (P(AXIS), P(None, None, AXIS), P(AXIS))
    stacked = (P(AXIS), P(None, None, AXIS), P(None, AXIS))
    whole = (P(), P(None, AXIS), P(AXIS))
    return {
        "MLP": Program(mlp, of_mlp, split),
        "MLP, its gradient": Program(mlp, of_mlp, split, gradient=True),
        "attention": Program(attention, of_attention, heads),
        "attention, its gradient": Program(attention, of_attention, heads, gradient=True),
        "two MLPs with all-reduces": Program(summed_mlp, of_mlp, whole),
        "MLP in fp8": Program(quantised_mlp, of_mlp, split),
        "MLPs in a scan, their gradient": Program(layers, of_layers, stacked, gradient=True),
    }
