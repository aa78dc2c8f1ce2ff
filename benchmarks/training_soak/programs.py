"""Small training steps drawn at random: layers in scans, loops, conditionals and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

WIDTH, CLASSES = 4, 3

Tree = Any

Layer = Callable[[Any, Any, "Beside"], Any]
"""The data, a square matrix, and what is beside them, to the data behind the layer."""


@dataclass(frozen=True)
class Beside:
    """What a layer may read beside the data and its matrix: none of it but the rows' a batch.

    Attributes:
      key: of random draws.
      first: the batch as it came.
      mask: of each row whether it counts, 0 or 1.
    """

    key: Any
    first: Any
    mask: Any


@dataclass(frozen=True)
class TrainingProgram:
    """A step, its arguments, and what is in it."""

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    parts: tuple[str, ...]


def _normed(z: Any, mask: Any) -> Any:
    count = mask.sum() + 1
    mean = (z * mask).sum(0) / count
    return (z - mean) * lax.rsqrt(((z - mean) ** 2 * mask).sum(0) / count + 0.1)


def _dropout(h: Any, key: Any) -> Any:
    return h * jax.random.bernoulli(key, 0.8, h.shape)


def _rbg(key: Any) -> Any:
    words = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.concatenate([words, words + 1]), impl="rbg")


def _power(w: Any, steps: int) -> Any:
    def iteration(_: Any, u: Any) -> Any:
        v = w @ (w.T @ u)
        return v / (jnp.linalg.norm(v) + 0.1)

    return lax.fori_loop(0, steps, iteration, jnp.ones(WIDTH))


def _passed(h: Any, w: Any, beside: Beside) -> Any:
    data = jax.random.key_data(beside.key)
    h, w, data, first = lax.optimization_barrier((h, w, data, beside.first))
    return _dropout(jnp.tanh(h @ w) + first, jax.random.wrap_key_data(data))


def _while(h: Any, w: Any, _: Beside) -> Any:
    def body(carry: Any) -> Any:
        at, h, u = carry
        return at + 1, jnp.tanh(h @ w) * u.mean(), jnp.tanh(w @ u)

    _, h, u = lax.fori_loop(0, 2, lambda _, carry: body(carry), (0, h, jnp.ones(WIDTH)))
    return h + lax.cond(u.sum() > 0, jnp.sin, jnp.cos, u)


LAYERS: dict[str, Layer] = {
    "dense": lambda h, w, _: jnp.tanh(h @ w),
    "residual": lambda h, w, _: h + jax.nn.gelu(h @ w) @ w.T,
    "layer norm": lambda h, w, _: (h - h.mean(-1, keepdims=True)) @ w,
    "batch norm": lambda h, w, beside: jnp.tanh(_normed(h @ w, jnp.ones_like(beside.mask))),
    "masked batch norm": lambda h, w, beside: jnp.tanh(_normed(h @ w, beside.mask)),
    "two batch norms": lambda h, w, beside: jnp.tanh(
        _normed(h @ w, beside.mask) + _normed(beside.first @ w, beside.mask)
    ),
    "threefry dropout": lambda h, w, beside: _dropout(h @ w, beside.key),
    "rbg dropout": lambda h, w, beside: _dropout(h @ w, _rbg(beside.key)),
    "cond on a weight": lambda h, w, _: h @ lax.cond(w.sum() > 0, jnp.sin, lambda w: w @ w, w),
    "cond on a key": lambda h, w, beside: lax.cond(
        jax.random.uniform(beside.key) > 0.5, lambda h: jnp.tanh(h @ w), jnp.sin, h
    ),
    "cond on the batch": lambda h, w, _: lax.cond(h.sum() > 0, jnp.sin, lambda h: h * 0.5, h) @ w,
    "loop on a weight": lambda h, w, _: jnp.tanh(h @ (w / (1 + jnp.linalg.norm(_power(w, 2))))),
    "while": _while,
    "barrier": _passed,
    "sorted rows": lambda h, w, _: jnp.sort(h, -1) @ w,
    "prefix sums": lambda h, w, _: jnp.cumsum(h @ w, -1) / WIDTH,
    "softmax of the batch": lambda h, w, _: jax.nn.softmax(h, 0) @ w,
}
"""Layers by what is in them. All of them are smooth but where a sign chooses a branch."""


def _scanned(layers: list[Layer], h: Any, w: Any, beside: Beside, carried: str) -> Any:
    """Some layers, as often as there are matrices; what is carried beside the data is used then."""

    def body(carry: Any, w: Any) -> tuple[Any, Any]:
        h, key, u, at = carry
        key, own = jax.random.split(key) if carried == "key" else (key, beside.key)
        for layer in layers:
            h = layer(h, w, Beside(own, beside.first, beside.mask))
        u = jnp.tanh(w @ u) if carried == "vector" else u
        return (h, key, u, at + 1), (h.mean() if carried == "means" else u.sum())

    start = (h, beside.key, jnp.ones(WIDTH), jnp.int32(0))
    (h, key, u, at), found = lax.scan(body, start, w)
    if carried == "key":
        h = h * jax.random.uniform(key, (WIDTH,))
    if carried == "vector":
        h = h * _power(jnp.outer(u, u), 2)
    if carried == "count":
        h = h * lax.cond(at > 1, lambda: 0.5, lambda: 2.0)
    return h + found.mean()


OF_THE_BATCH = frozenset(
    {
        "batch norm",
        "masked batch norm",
        "two batch norms",
        "cond on the batch",
        "softmax of the batch",
    }
)
"""Layers that read all rows at once, which `accumulate` refuses or takes several loops for."""

LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mean": lambda out, y, mask: ((out - y) ** 2).mean(),
    "masked mean": lambda out, y, mask: ((out - y) ** 2 * mask).sum() / (mask.sum() + 1),
    "cross-entropy": lambda out, y, mask: (
        -jnp.take_along_axis(jax.nn.log_softmax(out), jnp.argmax(y, -1, keepdims=True), -1).mean()
    ),
    "sum and largest": lambda out, y, mask: jnp.square(out - y).sum() + 0.1 * (out**2).max(),
}


def _updated(kind: str, w: Tree, moments: Tree, gradients: Tree) -> tuple[Tree, Tree]:
    if kind == "clipped":
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), gradients)
    if kind == "momentum":
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        gradients = moments
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradients), moments


def drawn(seed: int) -> TrainingProgram:
    """The program of a seed."""
    random = np.random.default_rng(seed)

    def chosen(choices: Any) -> Any:
        return choices[int(random.integers(len(choices)))]

    plan, parts = [], []
    apart = [name for name in LAYERS if name not in OF_THE_BATCH]
    layers = chosen([apart, apart, apart, list(LAYERS)])
    for _ in range(int(random.integers(1, 4))):
        names = [chosen(layers) for _ in range(int(random.integers(1, 3)))]
        carried = chosen(["", "", "key", "vector", "count", "means", "nothing"])
        checkpointed = chosen(["", "checkpoint", "checkpoint", "checkpoint of products"])
        plan.append((names, carried, checkpointed, int(random.integers(2, 4))))
        parts += [*names, *([f"scan with {carried}"] if carried else []), checkpointed]
    loss_name, update = chosen(list(LOSSES)), chosen(["plain", "clipped", "momentum"])
    rows = chosen([6, 8, 12])
    weights = [
        random.normal(size=(count, WIDTH, WIDTH) if carried else (WIDTH, WIDTH))
        for _, carried, _, count in plan
    ]
    weights.append(random.normal(size=(WIDTH, CLASSES)))
    weights = [(w / 2).astype(np.float32) for w in weights]
    x, y = (random.normal(size=(rows, size)).astype(np.float32) for size in (WIDTH, CLASSES))
    mask = (random.random((rows, 1)) < 0.7).astype(np.float32)

    def loss(w: Tree, key: Any, x: Any, y: Any, mask: Any) -> Any:
        h = x
        for number, (names, carried, checkpointed, _) in enumerate(plan):
            beside = Beside(jax.random.fold_in(key, number), x, mask)
            layers = [_wrapped(LAYERS[name], checkpointed) for name in names]
            if carried:
                h = _scanned(layers, h, w[number], beside, carried)
            else:
                for layer in layers:
                    h = layer(h, w[number], beside)
        out = h @ w[-1]
        return LOSSES[loss_name](out, y, mask), (out > 0).sum()

    def step(w: Tree, moments: Tree, words: Any, x: Any, y: Any, mask: Any) -> Any:
        key, following = jax.random.split(jax.random.wrap_key_data(words))
        (value, count), gradients = jax.value_and_grad(loss, has_aux=True)(w, key, x, y, mask)
        w, moments = _updated(update, w, moments, gradients)
        return w, moments, jax.random.key_data(following), value, count

    words = np.asarray([seed, 7], np.uint32)
    moments = [np.zeros_like(w) for w in weights]
    found = tuple(sorted({each for each in (*parts, loss_name, update) if each}))
    return TrainingProgram(step, (weights, moments, words, x, y, mask), found)


def _wrapped(layer: Layer, checkpointed: str) -> Layer:
    """A layer in a checkpoint of its own, which may save products; what is beside it is traced."""
    if not checkpointed:
        return layer
    policy = jax.checkpoint_policies.dots_saveable if "products" in checkpointed else None

    def inner(h: Any, w: Any, key: Any, first: Any, mask: Any) -> Any:
        return layer(h, w, Beside(key, first, mask))

    made = jax.checkpoint(inner, policy=policy)
    return lambda h, w, beside: made(h, w, beside.key, beside.first, beside.mask)
