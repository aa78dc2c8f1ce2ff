"""Reports about steps on one device: layers without weights, gradients of each example, inner
updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from benchmarks.reports.job import Job, array

Wrap = Callable[..., Any]


def random_features() -> Job:
    """Layers that are products with matrices drawn inside of the step."""
    width, batch, layers = 2048, 4096, 10

    def layer(key: jax.Array, x: jax.Array) -> jax.Array:
        return jax.nn.relu(jax.random.normal(key, (width, width)) @ x / width**0.5 + 1)

    def net(x: jax.Array, wrap: Wrap) -> jax.Array:
        key = jax.random.key(0)
        for _ in range(layers):
            key, mine = jax.random.split(key)
            x = wrap(layer)(mine, x)
        return x.mean()

    def step(wrap: Wrap) -> Any:
        return jax.value_and_grad(lambda x: net(x, wrap))

    return Job(
        "jax-ml/jax#19822",
        "a net of random matrices",
        step(lambda f: f),
        (array(width, batch),),
        ("fit{budget=60%}", "fit{budget=50%}", "fit{budget=min}"),
        {
            "checkpoint of the whole": jax.value_and_grad(
                jax.checkpoint(lambda x: net(x, lambda f: f))
            ),
            "checkpoint of each layer": step(jax.checkpoint),
        },
    )


def private_gradients() -> Job:
    """Gradients of each example, clipped one by one and summed (DP-SGD)."""
    batch, width, layers, classes, parts = 128, 512, 4, 16, 8

    def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for w in p[:-1]:
            x = jax.nn.relu(x @ w)
        return -jax.nn.log_softmax(x @ p[-1])[y]

    def clipped(p: Any, x: jax.Array, y: jax.Array) -> Any:
        each = jax.vmap(jax.grad(loss), (None, 0, 0))(p, x, y)
        squares = [jnp.square(g).sum(range(1, g.ndim)) for g in jax.tree.leaves(each)]
        norms = jnp.sqrt(jnp.stack(squares).sum(0))
        factors = jnp.minimum(1.0, 1.0 / norms)
        return jax.tree.map(lambda g: jnp.einsum("b,b...->...", factors, g), each), norms

    def update(p: Any, grads: Any) -> Any:
        return jax.tree.map(lambda a, g: a - 0.1 * g / batch, p, grads)

    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        grads, norms = clipped(p, x, y)
        return update(p, grads), norms

    def by_hand(p: Any, x: jax.Array, y: jax.Array) -> Any:
        def part(total: Any, xy: Any) -> Any:
            grads, norms = clipped(p, *xy)
            return jax.tree.map(jnp.add, total, grads), norms

        zeros = jax.tree.map(jnp.zeros_like, p)
        rows = x.reshape(parts, -1, width), y.reshape(parts, -1)
        grads, norms = jax.lax.scan(part, zeros, rows)
        return update(p, grads), norms.reshape(-1)

    weights = [array(width, width)] * layers + [array(width, classes)]
    return Job(
        "google/objax#178",
        "gradients of each example, clipped",
        step,
        (weights, array(batch, width), array(batch, dtype="int32")),
        ("fit{budget=25%}", f"accumulate{{microbatches={parts}}}"),
        {f"{parts} microbatches in a scan": by_hand},
        donate=(0,),
    )


def inner_updates() -> Job:
    """A loss behind some steps of gradient descent, differentiated through them."""
    batch, width, layers, updates = 256, 512, 4, 8

    def predict(p: Any, x: jax.Array) -> jax.Array:
        for w in p:
            x = jnp.tanh(x @ w)
        return x

    def inner(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.square(predict(p, x) - y).mean()

    def step(wrap: Wrap) -> Any:
        def outer(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            def once(p: Any, _: Any) -> tuple[Any, None]:
                return jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(inner)(p, x, y)), None

            return inner(jax.lax.scan(wrap(once), p, None, length=updates)[0], x, y)

        return jax.value_and_grad(outer)

    rows = array(batch, width)
    return Job(
        "jax-ml/jax#26618",
        "a loss behind 8 inner updates",
        step(lambda f: f),
        ([array(width, width)] * layers, rows, rows),
        ("remat", "fit{budget=50%}", "fit{budget=min}"),
        {"checkpoint of an update": step(jax.checkpoint)},
    )


def carry_on_the_host() -> Job:
    """Checkpointed layers, whose carry is to lie on the host."""
    layers, batch, length, width = 24, 32, 512, 512

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        x = checkpoint_name(x, "carry")
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def step(wrap: Wrap) -> Any:
        def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.square(jax.lax.scan(wrap(layer), x, p)[0] - y).mean()

        return jax.value_and_grad(loss)

    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["carry"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    weights = {"up": array(layers, width, 4 * width), "down": array(layers, 4 * width, width)}
    rows = array(batch, length, width)
    return Job(
        "jax-ml/jax#23869",
        "the carry of checkpointed layers on the host",
        step(jax.checkpoint),
        (weights, rows, rows),
        ("offload", "offload{exposed=10}", "fit{budget=60%}"),
        {"a policy on the carry": step(lambda f: jax.checkpoint(f, policy=policy))},
    )
