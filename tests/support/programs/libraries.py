"""Training steps written with the libraries people use, as their users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from support.programs.registry import normal


def flax_nnx_transformer() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.LayerNorm(32, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, 32, decode=False, rngs=rngs)
            self.up = nnx.Linear(32, 64, rngs=rngs)
            self.down = nnx.Linear(64, 32, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(x)))

    make = nnx.vmap(lambda key: Block(nnx.Rngs(key)), in_axes=0, out_axes=0)
    graph, state = nnx.split(make(jax.random.split(jax.random.key(0), 3)))
    # Not Adam: its first update is near the sign of a gradient, and so is no continuous function.
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))

    def step(state: Any, moments: Any, x: jax.Array) -> Any:
        def loss(state: Any) -> jax.Array:
            def layer(x: jax.Array, state: Any) -> tuple[jax.Array, None]:
                return nnx.merge(graph, state)(x), None

            return (jax.lax.scan(layer, x, state)[0] ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state)
        updates, moments = optimizer.update(grads, moments, state)
        return optax.apply_updates(state, updates), moments, value

    return step, (state, optimizer.init(state), normal(2, 8, 32))


def flax_linen_with_dropout() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(3):
                x = x + linen.Dropout(0.1, deterministic=False)(linen.gelu(linen.Dense(32)(x)))
                x = linen.LayerNorm()(x)
            return x

    net, x, key = Net(), normal(8, 32), jax.random.key(1)
    params = net.init({"params": key, "dropout": key}, x)

    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        return (net.apply(params, x, rngs={"dropout": key}) ** 2).mean()

    return jax.value_and_grad(loss), (params, x, key)


def equinox_mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    model = eqx.nn.MLP(16, 4, 32, 3, activation=jax.nn.silu, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return (jax.vmap(eqx.combine(params, static))(x) ** 2).mean()

    return jax.value_and_grad(loss), (params, normal(8, 16))


def diffrax_neural_ode() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def field(t: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(y @ w) * jnp.cos(t)

    def loss(w: jax.Array, y0: jax.Array) -> jax.Array:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=0.1,
            y0=y0,
            args=w,
            max_steps=16,
        )
        return (solution.ys**2).mean()

    return jax.value_and_grad(loss), (normal(8, 8) / 3, normal(4, 8))


def haiku_mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    class Block(hk.Module):
        def __call__(self, x: jax.Array) -> jax.Array:
            x = hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
            return hk.Linear(32)(jax.nn.gelu(hk.Linear(64)(x)))

    def net(x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = x + Block()(x)
        return x

    forward = hk.without_apply_rng(hk.transform(net))
    x = normal(8, 32)
    params = forward.init(jax.random.key(0), x)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return (forward.apply(params, x) ** 2).mean()

    return jax.value_and_grad(loss), (params, x)


LIBRARY_PROGRAMS = (
    flax_nnx_transformer,
    flax_linen_with_dropout,
    equinox_mlp,
    diffrax_neural_ode,
    haiku_mlp,
)
