"""Programs that may have a `jax.checkpoint`: around layers, scans, the whole loss, inside another.

Every program is a gradient, small enough to run in an instant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from support.programs import normal
from support.scan_programs import kernels

Wrap = Callable[[Any], Any]
Made = tuple[Callable[..., Any], tuple[Any, ...]]
CHECKPOINTED: dict[str, Callable[[Wrap], Made]] = {}
"""Programs by whatever is done to the functions that may have a checkpoint."""


def case(make: Callable[[Wrap], Made]) -> Callable[[Wrap], Made]:
    CHECKPOINTED[make.__name__] = make
    return make


def no_checkpoint(function: Any) -> Any:
    return function


def gradient(loss: Callable[..., Any], *arguments: Any) -> Made:
    return jax.value_and_grad(loss, (0, 1)), arguments


def attention(x: Any, w: Any) -> Any:
    """A layer of two products, a softmax between them, and a norm."""
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1.0)
    weights = jax.nn.softmax(x @ w, axis=-1)
    return weights @ w + x


def loss(*leading: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a loss of (wrap, matrices, batch) a case: its gradient, of matrices stacked so."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CHECKPOINTED[function.__name__] = lambda wrap: gradient(
            partial(function, wrap), kernels(*leading), normal(8, 16)
        )
        return function

    return register


def through_scan(body: Any, x: Any, xs: Any, **options: Any) -> Any:
    return (lax.scan(lambda c, w: (body(c, w), None), x, xs, **options)[0] ** 2).mean()


@loss(3)
def unrolled(wrap: Wrap, ws: Any, x: Any) -> Any:
    for number in range(3):
        x = wrap(attention)(x, ws[number])
    return (x**2).mean()


@case
def scanned(wrap: Wrap, **options: Any) -> Made:
    return gradient(
        lambda ws, x: through_scan(wrap(attention), x, ws, **options), kernels(4), normal(8, 16)
    )


@case
def scanned_in_reverse(wrap: Wrap) -> Made:
    return scanned(wrap, reverse=True)


@case
def scanned_without_a_barrier(wrap: Wrap) -> Made:
    if wrap is no_checkpoint:
        return scanned(wrap)
    return scanned(partial(jax.checkpoint, prevent_cse=False))


@loss(4)
def scanned_with_outputs(wrap: Wrap, ws: Any, x: Any) -> Any:
    def body(c: Any, w: Any) -> Any:
        c = attention(c, w)
        return c, jnp.sin(c)

    last, ys = lax.scan(wrap(body), x, ws)
    return (last**2).mean() + (ys**3).mean()


@loss(3)
def whole_loss_unrolled(wrap: Wrap, ws: Any, x: Any) -> Any:
    return wrap(partial(unrolled, no_checkpoint))(ws, x)


@loss(4)
def whole_loss_scanned(wrap: Wrap, ws: Any, x: Any) -> Any:
    return wrap(lambda ws, x: through_scan(attention, x, ws))(ws, x)


@loss(4)
def layers_and_the_whole_loss(wrap: Wrap, ws: Any, x: Any) -> Any:
    return wrap(lambda ws, x: through_scan(wrap(attention), x, ws))(ws, x)


def two_levels(inside: Wrap, outside: Wrap, ws: Any, x: Any) -> Any:
    inner = inside(attention)

    def outer(c: Any, w: Any) -> Any:
        return lax.scan(lambda c, w: (inner(c, w), None), c, w)[0], None

    return (lax.scan(outside(outer), x, ws)[0] ** 2).mean()


@loss(3, 2)
def inner_scan(wrap: Wrap, ws: Any, x: Any) -> Any:
    return two_levels(wrap, no_checkpoint, ws, x)


@loss(3, 2)
def outer_scan(wrap: Wrap, ws: Any, x: Any) -> Any:
    return two_levels(no_checkpoint, wrap, ws, x)


@loss(3, 2)
def both_scans(wrap: Wrap, ws: Any, x: Any) -> Any:
    return two_levels(wrap, wrap, ws, x)


@loss(4)
def checkpoint_in_a_checkpoint(wrap: Wrap, ws: Any, x: Any) -> Any:
    pair = wrap(lambda x, a, b: wrap(attention)(wrap(attention)(x, a), b))
    return (pair(pair(x, ws[0], ws[1]), ws[2], ws[3]) ** 2).mean()


@case
def microbatches(wrap: Wrap) -> Made:
    """The loops are in the body of another one."""
    function, (ws, x) = scanned(wrap)

    def step(ws: Any, xs: Any) -> Any:
        return lax.scan(
            lambda total, x: (jax.tree.map(jnp.add, total, function(ws, x)[1]), None),
            jax.tree.map(jnp.zeros_like, (ws, xs[0])),
            xs,
        )[0]

    return step, (ws, jnp.stack([x, -x]))


@loss(4)
def dropout(wrap: Wrap, ws: Any, x: Any) -> Any:
    """With keys in the scan's inputs; masks are made by a product, to be worth storing."""

    def body(c: Any, wk: Any) -> Any:
        w, key = wk
        kept = jax.random.bernoulli(key, 0.8, c.shape)
        return jnp.where(kept, attention(c, w), 0.5 * c)

    return through_scan(wrap(body), x, (ws, jax.random.split(jax.random.key(3), 4)))


@loss(4)
def custom_gradient(wrap: Wrap, ws: Any, x: Any) -> Any:
    product = jax.custom_vjp(lambda x, w: jnp.tanh(x @ w))

    def forward(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y, (x, w, y)

    def backward(residuals: Any, g: Any) -> Any:
        x, w, y = residuals
        g = g * (1 - y * y)
        return g @ w.T, x.T @ g

    product.defvjp(forward, backward)
    return through_scan(wrap(lambda c, w: product(product(c, w), w)), x, ws)


@loss(4)
def bfloat16(wrap: Wrap, ws: Any, x: Any) -> Any:
    def body(c: Any, w: Any) -> Any:
        product = c.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
        return jnp.tanh(product.astype(jnp.float32)) + c

    return through_scan(wrap(body), x, ws)


@loss(4)
def policy_that_saves_some(wrap: Wrap, ws: Any, x: Any) -> Any:
    """What a policy does not store may be stored as well."""

    def body(c: Any, w: Any) -> Any:
        c = checkpoint_name(jnp.tanh(c @ w), "named")
        return jnp.sin(jnp.tanh(c @ w) @ w), None

    policy = jax.checkpoint_policies.save_only_these_names("named")
    wrapped = body if wrap is no_checkpoint else jax.checkpoint(body, policy=policy)
    return (lax.scan(wrapped, x, ws)[0] ** 2).mean()
