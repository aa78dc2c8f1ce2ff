"""Training steps in which loops and conditionals work on what does not depend on the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from support.flows.steps import FlowStep, Tree, mlp_weights, normal

ROWS, WIDTH, OUT = 256, 8, 3

WHOLE_CODE: dict[str, Callable[[], FlowStep]] = {}


def program(make: Callable[[], FlowStep]) -> Callable[[], FlowStep]:
    WHOLE_CODE[make.__name__] = make
    return make


def trained(loss: Callable[..., Any], weights: Tree, *others: Any, phases: int = 1) -> FlowStep:
    """A step of gradient descent, of weights, what is no batch, and x and y, which are.

    The step takes what is done with the function of the loss and the gradients, if anything.
    """

    def step(weights: Tree, *rest: Any, through: Callable[[Any], Any] = lambda f: f) -> Any:
        value, gradients = through(jax.value_and_grad(loss))(weights, *rest)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    data = (normal(ROWS, WIDTH, seed=7), normal(ROWS, OUT, seed=8))
    return FlowStep(step, (weights, *others, *data), 2, phases)


def squares(x: Any, w: Any, y: Any) -> Any:
    return ((x @ w - y) ** 2).mean()


def weights() -> list[Any]:
    return mlp_weights(WIDTH, WIDTH, WIDTH, OUT)


def key() -> Any:
    return jax.random.key_data(jax.random.key(3))


@program
def dropout_in_a_checkpoint() -> FlowStep:
    """On a CPU the draw is a loop, of a key that the checkpoint's barrier has beside the data."""

    @jax.checkpoint
    def layer(x: Any, w: Any, key: Any) -> Any:
        h = jnp.tanh(x @ w)
        return h * jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, h.shape)

    def loss(w: Tree, key: Any, x: Any, y: Any) -> Any:
        for number in range(2):
            x = layer(x, w[number], key + jnp.uint32(number))
        return squares(x, w[2], y)

    return trained(loss, weights(), key())


def _checkpointed(make: Callable[[Any], Any]) -> FlowStep:
    """A checkpointed layer that makes its matrix of a weight."""
    layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ make(w)))

    def loss(w: Tree, x: Any, y: Any) -> Any:
        return squares(layer(layer(x, w[0]), w[1]), w[2], y)

    return trained(loss, weights())


@program
def spectral_norm_in_a_checkpoint() -> FlowStep:
    def normed(w: Any) -> Any:
        def iteration(_: int, u: Any) -> Any:
            v = w @ (w.T @ u)
            return v / jnp.linalg.norm(v)

        u = jax.lax.fori_loop(0, 3, iteration, jnp.ones(WIDTH))
        return w / jnp.linalg.norm(w.T @ jax.lax.stop_gradient(u))

    return _checkpointed(normed)


@program
def a_choice_in_a_checkpoint() -> FlowStep:
    return _checkpointed(
        lambda w: jax.lax.cond(w.sum() > 0, lambda w: w @ w, lambda w: jnp.sin(w), w)
    )


@program
def a_scan_that_carries_the_key() -> FlowStep:
    """What is drawn of the last key is read by the loop that carries it."""

    def loss(w: Tree, key: Any, x: Any, y: Any) -> Any:
        def layer(carry: Any, w: Any) -> tuple[Any, None]:
            h, key = carry
            key, _ = jax.random.split(key)
            return (jnp.tanh(h @ w) + h, key), None

        (x, last), _ = jax.lax.scan(layer, (x, jax.random.wrap_key_data(key)), w["layers"])
        return squares(x * jax.random.uniform(last, (WIDTH,)), w["last"], y)

    w = {"layers": normal(3, WIDTH, WIDTH), "last": normal(WIDTH, OUT, seed=1)}
    return trained(loss, w, key())


@program
def a_choice_beside_the_data() -> FlowStep:
    """A conditional makes a chunk of the batch, and a vector that a loop behind it works on."""

    def loss(w: Tree, x: Any, y: Any) -> Any:
        def one(x: Any) -> Any:
            return jnp.tanh(x @ w[0]), w[0].sum(0)

        def other(x: Any) -> Any:
            return jnp.sin(x @ w[1]), w[1].sum(1)

        x, u = jax.lax.cond(w[2].sum() > 0, one, other, x)
        u = jax.lax.fori_loop(0, 3, lambda _, u: jnp.tanh(w[0] @ u), u)
        return squares(x * u, w[2], y)

    return trained(loss, weights())


@program
def a_scan_that_carries_a_vector_of_weights() -> FlowStep:
    """A nested loop and a checkpoint are between the vector and the counters."""

    def loss(w: Tree, x: Any, y: Any) -> Any:
        @jax.checkpoint
        def layer(carry: Any, w: Any) -> tuple[Any, Any]:
            h, u = carry
            u = jax.lax.fori_loop(0, 2, lambda _, u: jnp.tanh(w @ u), u)
            return (jnp.tanh(h @ w) * u, u), u.sum()

        (x, u), sums = jax.lax.scan(layer, (x, jnp.ones(WIDTH)), w["layers"])
        scale = jax.lax.cond(sums.sum() > 0, lambda u: u.sum(), lambda u: u.max(), u)
        return squares(x * scale, w["last"], y)

    w = {"layers": normal(3, WIDTH, WIDTH), "last": normal(WIDTH, OUT, seed=1)}
    return trained(loss, w)


def _normed(z: Any, mask: Any) -> Any:
    mean = (z * mask).sum(0) / mask.sum()
    variance = ((z - mean) ** 2 * mask).sum(0) / mask.sum()
    return (z - mean) * jax.lax.rsqrt(variance + 1e-3)


def _two_norms(*, masked: bool) -> FlowStep:
    """Batch norm of what the layer is given and of the batch itself, in a checkpoint.

    The checkpoint's barrier has operands of two phases.
    """

    @jax.checkpoint
    def layer(h: Any, x: Any, w: Any, mask: Any) -> Any:
        return jnp.tanh(_normed(h @ w, mask) + _normed(x @ w, mask))

    def loss(w: Tree, x: Any, y: Any) -> Any:
        mask = (y[:, :1] > -0.5).astype(x.dtype) if masked else jnp.ones((ROWS, 1))
        h = x
        for each in w[:-1]:
            h = layer(h, x, each, mask)
        return squares(h, w[-1], y)

    return trained(loss, weights(), phases=9)


@program
def two_batch_norms_in_a_checkpoint() -> FlowStep:
    return _two_norms(masked=False)


@program
def two_masked_batch_norms_in_a_checkpoint() -> FlowStep:
    return _two_norms(masked=True)
