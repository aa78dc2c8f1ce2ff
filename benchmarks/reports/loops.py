"""Reports about loops: over time, over blocks of time, and over checkpointed layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.reports.job import Job, array

Wrap = Callable[..., Any]


def _alone(function: Any) -> Any:
    return function


def sum_in_a_scan() -> Job:
    """The gradient of a sum over a scan, of which a factor of every product is kept."""
    width, steps = 1024, 100

    def loss(x: jax.Array, rows: Any, wrap: Wrap) -> jax.Array:
        def add(total: jax.Array, row: Any) -> tuple[jax.Array, None]:
            y, z = row
            return total + (x * (y + z)).sum(), None

        return jax.lax.scan(wrap(add), jnp.zeros(()), rows)[0]

    def step(wrap: Wrap) -> Any:
        return jax.value_and_grad(lambda x, rows: loss(x, rows, wrap))

    return Job(
        "jax-ml/jax#3186",
        "a sum over a scan, its gradient",
        step(_alone),
        (array(width, width), (array(steps, width, width),) * 2),
        ("remat", "fit{budget=min}"),
        {"checkpoint": step(jax.checkpoint)},
    )


def blocks_of_time(*, wrapped: bool) -> Job:
    """Ten scans of a hundred steps, one behind the other."""
    blocks, steps, rows, columns = 10, 100, 3000, 100

    def advance(carry: Any, _: Any) -> tuple[Any, None]:
        x, rate = carry
        first = jnp.sin(rate * x)
        return (x + first + jnp.cos(rate * first), rate), None

    def loss(rate: jax.Array, x: jax.Array, inner: Wrap, outer: Wrap) -> jax.Array:
        carry: Any = (x, rate)
        for block in range(blocks):
            times = jnp.arange(block * steps, (block + 1) * steps)
            carry = outer(lambda c, t=times: jax.lax.scan(inner(advance), c, t)[0])(carry)
        return jnp.sum(carry[0])

    def nested(rate: jax.Array, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def block(carry: Any, times: jax.Array) -> tuple[Any, None]:
            return jax.lax.scan(jax.checkpoint(advance), carry, times)[0], None

        times = jnp.arange(blocks * steps).reshape(blocks, steps)
        return jnp.sum(jax.lax.scan(block, (x, rate), times)[0][0])

    def step(inner: Wrap, outer: Wrap) -> Any:
        return jax.value_and_grad(lambda rate, x: loss(rate, x, inner, outer))

    by_hand = {"a scan of the blocks, both checkpointed": jax.value_and_grad(nested)}
    specs: tuple[str, ...]
    if wrapped:
        own, title = step(jax.checkpoint, jax.checkpoint), "blocks of a scan, checkpointed twice"
        specs = ("fit", "fit{budget=30%}", "fit{budget=400MiB}", "fit{budget=min}")
    else:
        own, title = step(_alone, _alone), "blocks of a scan"
        specs = ("fit", "fit{budget=50%}", "fit{budget=min}")
        by_hand["both checkpointed"] = step(jax.checkpoint, jax.checkpoint)
    return Job("jax-ml/jax#27748", title, own, (array(), array(rows, columns)), specs, by_hand)


def wave() -> Job:
    """The gradient of a wave simulation by its velocity."""
    size, times, outer = 256, 1024, 32

    def laplacian(u: jax.Array) -> jax.Array:
        near = [jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)]
        return near[0] + near[1] + near[2] + near[3] - 4 * u

    def loss(velocity: jax.Array, source: jax.Array, seen: jax.Array, nested: bool) -> jax.Array:
        squared = 0.1 * jax.nn.sigmoid(velocity)

        def advance(carry: Any, force: jax.Array) -> tuple[Any, jax.Array]:
            now, before = carry
            new = 2 * now - before + squared * laplacian(now)
            new = new.at[size // 2, size // 4].add(force)
            return (new, now), new[size // 2, 3 * size // 4]

        def run(carry: Any, forces: jax.Array) -> tuple[Any, jax.Array]:
            return jax.lax.scan(advance, carry, forces)

        start = (jnp.zeros((size, size)),) * 2
        if nested:
            parts = source.reshape(outer, times // outer)
            told = jax.lax.scan(jax.checkpoint(run), start, parts)[1].reshape(times)
        else:
            told = run(start, source)[1]
        return jnp.square(told - seen).sum()

    def step(nested: bool) -> Any:
        return jax.value_and_grad(lambda v, s, r: loss(v, s, r, nested))

    return Job(
        "jax-ml/jax#2139, patrick-kidger/diffrax#274",
        "adjoint of a wave, 1024 steps",
        step(False),
        (array(size, size), array(times), array(times)),
        ("fit{budget=20%}", "fit{budget=min}"),
        {"nested checkpoints, 32 x 32": step(True)},
    )


def checkpointed_layers() -> Job:
    """64 checkpointed layers, whose inputs are most of what is left."""
    layers, batch, length, width, outer = 64, 32, 512, 256, 8

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        normed = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)
        return x + jax.nn.gelu(normed @ w["up"]) @ w["down"], None

    def loss(p: Any, x: jax.Array, y: jax.Array, nested: bool) -> jax.Array:
        one = jax.checkpoint(layer)
        if nested:
            parts = jax.tree.map(lambda a: a.reshape(outer, layers // outer, *a.shape[1:]), p)
            block = jax.checkpoint(lambda x, w: jax.lax.scan(one, x, w))
            x = jax.lax.scan(block, x, parts)[0]
        else:
            x = jax.lax.scan(one, x, p)[0]
        return jnp.square(x - y).mean()

    def step(nested: bool) -> Any:
        def update(p: Any, x: jax.Array, y: jax.Array) -> Any:
            value, grads = jax.value_and_grad(loss)(p, x, y, nested)
            return jax.tree.map(lambda a, g: a - 1e-3 * g, p, grads), value

        return update

    weights = {"up": array(layers, width, 4 * width), "down": array(layers, 4 * width, width)}
    rows = array(batch, length, width)
    return Job(
        "stanford-crfm/levanter#427",
        "inputs of 64 checkpointed layers",
        step(False),
        (weights, rows, rows),
        ("fit{budget=75%}", "fit{budget=50%}", "fit{budget=min}"),
        {"nested checkpoints, 8 x 8": step(True)},
        donate=(0,),
    )


def policy_gradient() -> Job:
    """A policy trained through a simulation: gradients of short rollouts in a scan."""
    worlds, rollouts, horizon, substeps, size, width = 1024, 4, 32, 4, 24, 256

    def act(p: Any, seen: jax.Array) -> jax.Array:
        for w, b in p[:-1]:
            seen = jax.nn.silu(seen @ w + b)
        return jnp.tanh(seen @ p[-1][0] + p[-1][1])

    def simulate(state: Any, action: jax.Array) -> Any:
        def substep(state: Any, _: Any) -> tuple[Any, None]:
            q, v = state
            pushed = action * 5 - jnp.sin(q) * 9.8 - 0.1 * v * jnp.abs(v)
            pushed += jax.nn.softplus(-10 * (q + 1)) * 20
            v = v + 0.005 * (pushed + jnp.roll(q, 1, -1) - q)
            return (q + 0.005 * v, v), None

        return jax.lax.scan(substep, state, None, length=substeps)[0]

    def rollout(p: Any, state: Any, wrap: Wrap) -> tuple[jax.Array, Any]:
        def once(state: Any, _: Any) -> tuple[Any, jax.Array]:
            q, v = state
            action = act(p, jnp.concatenate([jnp.sin(q), jnp.cos(q), v], -1))
            state = simulate(state, action)
            return state, -jnp.square(state[0]).sum(-1) - 0.01 * jnp.square(action).sum(-1)

        state, rewards = jax.lax.scan(wrap(once), state, None, length=horizon)
        return -rewards.mean(), state

    def step(wrap: Wrap) -> Any:
        def update(p: Any, momenta: Any, q: jax.Array, v: jax.Array) -> Any:
            def part(state: Any, _: Any) -> tuple[Any, Any]:
                found = jax.value_and_grad(rollout, has_aux=True)(p, state, wrap)
                (value, state), grads = found
                return jax.lax.stop_gradient(state), (value, grads)

            state, (values, grads) = jax.lax.scan(part, (q, v), None, length=rollouts)
            grads = jax.tree.map(lambda g: g.mean(0), grads)
            new = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, grads)
            return jax.tree.map(lambda a, m: a - 1e-3 * m, p, new), new, values.mean(), state

        return update

    sizes = [(3 * size, width), (width, width), (width, width), (width, size)]
    weights = [(array(*shape), array(shape[1])) for shape in sizes]
    world = array(worlds, size)
    return Job(
        "google/brax#476",
        "policy gradients through a simulation",
        step(_alone),
        (weights, weights, world, world),
        ("fit{budget=25%}", "fit{budget=min}", "accumulate{microbatches=4}"),
        {"checkpoint of a step": step(jax.checkpoint)},
    )


def recurrent() -> Job:
    """A bidirectional LSTM of flax.nnx over a long sequence."""
    from flax import nnx

    batch, times, width = 64, 256, 128

    def model() -> Any:
        rngs = nnx.Rngs(0)
        forward, backward = (
            nnx.RNN(nnx.OptimizedLSTMCell(width, width, rngs=rngs)) for _ in range(2)
        )
        return nnx.Bidirectional(forward, backward, rngs=rngs)

    def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        made = model()
        nnx.update(made, p)
        return jnp.square(made(x)[..., :width] - y).mean()

    parameters = nnx.state(nnx.eval_shape(model), nnx.Param)
    rows = array(batch, times, width)
    return Job(
        "google/flax#2187",
        "an LSTM in both directions, flax.nnx",
        jax.value_and_grad(loss),
        (jax.tree.map(lambda leaf: array(*leaf.shape), parameters), rows, rows),
        ("remat", "fit{budget=50%}", "fit{budget=min}"),
    )
