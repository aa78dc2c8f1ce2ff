"""Training steps that are cut along their batch: what they take, and the loops that it costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BATCH, POSITIONS, WIDTH, HEADS, WORDS, CLASSES = 4, 5, 8, 2, 11, 3

Tree = Any


@dataclass(frozen=True)
class FlowStep:
    """A step, its arguments, and what is expected of it.

    Attributes:
      step: the function.
      arguments: those that are not batches, then the batches.
      batches: how many of the last arguments' leaves have the batch as their first axis.
      phases: the loops that the batch takes.
      interpreted: whether the interpreter can run it.
    """

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    batches: int
    phases: int
    interpreted: bool = True

    @property
    def leaves(self) -> list[Any]:
        return jax.tree.leaves(self.arguments)

    @property
    def batch_numbers(self) -> list[int]:
        count = len(self.leaves)
        return list(range(count - self.batches, count))


STEPS: dict[str, Callable[[], FlowStep]] = {}


def step(make: Callable[[], FlowStep]) -> Callable[[], FlowStep]:
    STEPS[make.__name__] = make
    return make


def normal(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / 2, jnp.float32)


def tokens(*shape: int, most: int = WORDS) -> Any:
    return jnp.asarray(np.random.default_rng(3).integers(0, most, shape), jnp.int32)


def normed(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def layer(x: Any, weights: Tree) -> Any:
    batch, length, width = x.shape
    heads = (normed(x) @ weights["qkv"]).reshape(batch, length, 3, HEADS, width // HEADS)
    q, k, v = (heads[:, :, number].transpose(0, 2, 1, 3) for number in range(3))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
    x = x + mixed.transpose(0, 2, 1, 3).reshape(batch, length, width) @ weights["out"]
    return x + jax.nn.gelu(normed(x) @ weights["up"]) @ weights["down"]


def gpt_weights(layers: int = 2) -> Tree:
    return {
        "words": normal(WORDS, WIDTH),
        "places": normal(POSITIONS, WIDTH, seed=1),
        "layers": {
            "qkv": normal(layers, WIDTH, 3 * WIDTH, seed=2),
            "out": normal(layers, WIDTH, WIDTH, seed=3),
            "up": normal(layers, WIDTH, 2 * WIDTH, seed=4),
            "down": normal(layers, 2 * WIDTH, WIDTH, seed=5),
        },
    }


def gpt_losses(weights: Tree, words: Any, *, scanned: bool = False, remat: bool = False) -> Any:
    """The cross-entropy of each token."""
    x = weights["words"][words[:, :-1]] + weights["places"]
    body = jax.checkpoint(layer) if remat else layer
    if scanned:
        x = jax.lax.scan(lambda x, w: (body(x, w), None), x, weights["layers"])[0]
    else:
        for number in range(len(weights["layers"]["up"])):
            x = body(x, jax.tree.map(lambda w, number=number: w[number], weights["layers"]))
    logits = jax.nn.log_softmax(normed(x) @ weights["words"].T)
    return -jnp.take_along_axis(logits, words[:, 1:, None], -1)[..., 0]


def gpt_loss(weights: Tree, words: Any, **options: Any) -> Any:
    return gpt_losses(weights, words, **options).mean()


@step
def gpt() -> FlowStep:
    return FlowStep(
        jax.value_and_grad(gpt_loss), (gpt_weights(), tokens(BATCH, POSITIONS + 1)), 1, 1
    )


@step
def gpt_scanned() -> FlowStep:
    def loss(weights: Tree, words: Any) -> Any:
        return gpt_loss(weights, words, scanned=True, remat=True)

    return FlowStep(jax.value_and_grad(loss), (gpt_weights(), tokens(BATCH, POSITIONS + 1)), 1, 1)


def adam(weights: Tree, moments: Tree, gradients: Tree) -> tuple[Tree, Tree]:
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moments[1], gradients)
    moved = jax.tree.map(
        lambda w, m, v: w - 0.01 * m / (jnp.sqrt(v) + 1e-3), weights, first, second
    )
    return moved, (first, second)


@step
def gpt_and_adam_with_clipping() -> FlowStep:
    """The norm of all gradients is finished with the gradients: no second loop."""

    def train(weights: Tree, moments: Tree, words: Any) -> Any:
        loss, gradients = jax.value_and_grad(gpt_loss)(weights, words)
        squares = sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients))
        scale = jnp.minimum(1.0, 1.0 / jnp.sqrt(squares))
        gradients = jax.tree.map(lambda g: g * scale, gradients)
        return adam(weights, moments, gradients), loss

    weights = gpt_weights()
    moments = (jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.ones_like, weights))
    return FlowStep(train, (weights, moments, tokens(BATCH, POSITIONS + 1)), 1, 1)


def mlp_weights(*widths: int) -> list[Any]:
    pairs = itertools.pairwise(widths)
    return [normal(*pair, seed=number) for number, pair in enumerate(pairs)]


def mlp(weights: list[Any], x: Any) -> Any:
    for weight in weights[:-1]:
        x = jax.nn.relu(x @ weight)
    return x @ weights[-1]


@step
def mlp_with_targets() -> FlowStep:
    def loss(weights: Tree, x: Any, y: Any) -> Any:
        return ((mlp(weights, x) - y) ** 2).mean()

    arguments = (mlp_weights(6, 8, CLASSES), normal(BATCH, 6), normal(BATCH, CLASSES, seed=7))
    return FlowStep(jax.value_and_grad(loss), arguments, 2, 1)


@step
def masked_mean() -> FlowStep:
    """The sum of the mask takes no loop: the mask is there before."""

    def loss(weights: Tree, x: Any, mask: Any) -> Any:
        return ((mlp(weights, x) ** 2).sum(-1) * mask).sum() / mask.sum()

    mask = jnp.asarray([1.0, 0.0, 1.0, 1.0])
    arguments = (mlp_weights(6, 8, CLASSES), normal(BATCH, 6), mask)
    return FlowStep(jax.value_and_grad(loss), arguments, 2, 1)


@step
def mask_of_the_batch() -> FlowStep:
    """So does the number of words that count."""

    def loss(weights: Tree, words: Any) -> Any:
        counts = words[:, 1:] > 2
        return jnp.where(counts, gpt_losses(weights, words), 0.0).sum() / counts.sum()

    return FlowStep(jax.value_and_grad(loss), (gpt_weights(1), tokens(BATCH, POSITIONS + 1)), 1, 1)


@step
def hardest_of_the_batch() -> FlowStep:
    """The two largest losses: all are known after a first loop."""

    def loss(weights: Tree, x: Any) -> Any:
        losses = (mlp(weights, x) ** 2).sum(-1)
        return jnp.where(losses >= jnp.sort(losses)[-2], losses, 0.0).sum()

    return FlowStep(jax.value_and_grad(loss), (mlp_weights(6, 8, 3), normal(BATCH, 6)), 1, 2)


@step
def batch_norm() -> FlowStep:
    def loss(weights: Tree, x: Any) -> Any:
        x = x @ weights[0]
        x = (x - x.mean(0)) * jax.lax.rsqrt(((x - x.mean(0)) ** 2).mean(0) + 1e-3)
        return (mlp(weights[1:], jnp.tanh(x)) ** 2).sum() / BATCH

    return FlowStep(jax.value_and_grad(loss), (mlp_weights(6, 8, 7, 3), normal(BATCH, 6)), 1, 5)


@step
def dropout() -> FlowStep:
    """The same mask: random bits of the whole, of which each chunk has a part."""

    def loss(weights: Tree, key: Any, x: Any) -> Any:
        hidden = jax.nn.relu(x @ weights[0])
        keep = jax.random.bernoulli(key, 0.5, hidden.shape)
        return ((jnp.where(keep, hidden / 0.5, 0.0) @ weights[1]) ** 2).mean()

    arguments = (mlp_weights(6, 8, CLASSES), jax.random.PRNGKey(3), normal(BATCH, 6))
    return FlowStep(jax.value_and_grad(loss), arguments, 1, 1, interpreted=False)


@step
def convolutions_with_group_norm() -> FlowStep:
    def loss(weights: Tree, images: Any, labels: Any) -> Any:
        x = jax.lax.conv_general_dilated(images, weights[0], (1, 1), "SAME")
        grouped = x.reshape(BATCH, 2, 2, 6, 6)
        centred = grouped - grouped.mean((2, 3, 4), keepdims=True)
        scale = jax.lax.rsqrt((centred**2).mean((2, 3, 4), keepdims=True) + 1e-5)
        x = jax.nn.relu((centred * scale).reshape(x.shape))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        scores = jax.nn.log_softmax(x.mean((2, 3)) @ weights[1])
        return -(scores * jax.nn.one_hot(labels, CLASSES)).sum() / BATCH

    weights = [normal(4, 2, 3, 3), normal(4, CLASSES, seed=1)]
    arguments = (weights, normal(BATCH, 2, 6, 6), tokens(BATCH, most=CLASSES))
    return FlowStep(jax.value_and_grad(loss), arguments, 2, 1, interpreted=False)


@step
def a_condition_and_a_custom_gradient() -> FlowStep:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))

    def loss(weights: Tree, late: Any, x: Any) -> Any:
        hidden = clipped(x @ weights[0])
        hidden = jax.lax.cond(late > 0, jnp.tanh, lambda y: 0.5 * y, hidden)
        return ((hidden @ weights[1]) ** 2).mean()

    arguments = (mlp_weights(6, 8, CLASSES), jnp.float32(1.0), normal(BATCH, 6))
    return FlowStep(jax.value_and_grad(loss), arguments, 1, 1)


@step
def recurrent() -> FlowStep:
    """A scan over time whose weights are the same in each iteration: its gradient sums them."""

    def loss(weights: Tree, x: Any) -> Any:
        def body(state: Any, now: Any) -> tuple[Any, Any]:
            state = jnp.tanh(state @ weights[0] + now @ weights[1])
            return state, state.mean()

        start = jnp.zeros((BATCH, 6))
        last, means = jax.lax.scan(body, start, x.transpose(1, 0, 2))
        return (last**2).mean() + means.sum()

    weights = [normal(6, 6), normal(CLASSES, 6, seed=1)]
    return FlowStep(jax.value_and_grad(loss), (weights, normal(BATCH, 4, CLASSES)), 1, 1)


@step
def microbatches_by_hand() -> FlowStep:
    """A step that accumulates itself: what is left to cut is a microbatch."""

    def train(weights: Tree, x: Any) -> Any:
        def body(total: Any, part: Any) -> tuple[Any, None]:
            loss, gradients = jax.value_and_grad(lambda w: (mlp(w, part) ** 2).mean())(weights)
            return jax.tree.map(jnp.add, total, (loss, gradients)), None

        start = (jnp.float32(0.0), jax.tree.map(jnp.zeros_like, weights))
        return jax.lax.scan(body, start, x.reshape(2, BATCH, 6))[0]

    return FlowStep(train, (mlp_weights(6, 8, CLASSES), normal(2 * BATCH, 6)), 1, 1)


def contrast_in_the_batch() -> FlowStep:
    """Not among the steps: the batches of x and y are two dimensions, until both are given."""

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        scores = mlp(weights, x) @ mlp(weights, y).T
        return -jnp.trace(jax.nn.log_softmax(scores)) / BATCH

    arguments = (mlp_weights(6, 8, CLASSES), normal(BATCH, 6), normal(BATCH, 6, seed=9))
    return FlowStep(jax.value_and_grad(loss), arguments, 2, 3)
