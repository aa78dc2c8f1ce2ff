"""Training steps of some tens of kernels: layers of most kinds, and programs drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import convolve, shaped
from benchmarks.programs.gpt import Gpt

ROWS, WIDTH = 8192, 1024
IMAGES, SIZE, CHANNELS = 16, 64, 32

Graph = Callable[[], Any]
"""Lowers the gradient of a loss."""


def _gradient(loss: Callable[..., jax.Array], *arguments: Any) -> Any:
    return jax.jit(jax.value_and_grad(loss)).lower(*arguments)


def _square(rows: int = WIDTH) -> jax.ShapeDtypeStruct:
    return shaped(rows, WIDTH)


def _mlp(activate: Callable[[jax.Array], jax.Array], layers: int) -> Any:
    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = activate(x @ kernel)
        return (x**2).mean()

    return _gradient(loss, [_square()] * layers, _square(ROWS))


def _residual(activate: Callable[[jax.Array], jax.Array], layers: int) -> Any:
    def loss(kernels: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for up, down in kernels:
            x = x + activate(x @ up) @ down
        return (x**2).mean()

    kernels = (shaped(WIDTH, 2 * WIDTH), shaped(2 * WIDTH, WIDTH))
    return _gradient(loss, [kernels] * layers, _square(ROWS))


def _gated(layers: int) -> Any:
    def loss(kernels: list[tuple[jax.Array, ...]], x: jax.Array) -> jax.Array:
        for gate, up, down in kernels:
            normed = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)
            x = x + (jax.nn.silu(normed @ gate) * (normed @ up)) @ down
        return (x**2).mean()

    return _gradient(loss, [(_square(), _square(), _square())] * layers, _square(ROWS))


def _pyramid(layers: int) -> Any:
    """An autoencoder: widths halve, then double again."""

    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = jnp.tanh(x @ kernel)
        return (x**2).mean()

    down = [shaped(WIDTH >> n, WIDTH >> (n + 1)) for n in range(layers)]
    up = [shaped(WIDTH >> (n + 1), WIDTH >> n) for n in reversed(range(layers))]
    return _gradient(loss, [*down, *up], _square(ROWS))


def _gpt(**sizes: Any) -> Any:
    return Gpt(scanned=False, sequence=256, width=512, vocabulary=1024, **sizes).lower()


def _attention(heads: int) -> Any:
    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        query, key, value = (
            (x @ kernel).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for kernel in kernels
        )
        weights = jax.nn.softmax(query @ key.swapaxes(2, 3) / 8.0)
        return ((weights @ value) ** 2).mean()

    return _gradient(loss, [_square()] * 3, shaped(8, 512, WIDTH))


def _convolutions(blocks: int, *, residual: bool) -> Any:
    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            y = jax.nn.relu(convolve(x, kernel))
            x = x + y if residual else y
        return (x**2).mean()

    kernel = shaped(3, 3, CHANNELS, CHANNELS)
    return _gradient(loss, [kernel] * blocks, shaped(IMAGES, SIZE, SIZE, CHANNELS))


def _llama(layers: int) -> Any:
    """Rotary positions, grouped queries and a gated perceptron, the layers unrolled."""
    batch, sequence, heads, groups, head = 8, 256, 8, 2, 64
    width, hidden = heads * head, 4 * head * heads

    def normalize(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def rotate(x: jax.Array) -> jax.Array:
        frequencies = 10_000.0 ** (-2.0 * jnp.arange(head // 2) / head)
        angles = (jnp.arange(sequence)[:, None] * frequencies)[None, :, None, :]
        left, right = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    def loss(kernels: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for p in kernels:
            normed = normalize(x)
            query, key, value = (
                (normed @ p[name]).reshape(batch, sequence, -1, head) for name in ("q", "k", "v")
            )
            query = rotate(query).reshape(batch, sequence, groups, heads // groups, head)
            scores = jnp.einsum("btkgd,bskd->bkgts", query, rotate(key)) / head**0.5
            causal = jnp.arange(sequence)[:, None] >= jnp.arange(sequence)
            weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
            x = x + jnp.einsum("bkgts,bskd->btkgd", weights, value).reshape(x.shape) @ p["out"]
            normed = normalize(x)
            x = x + (jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])) @ p["down"]
        return (x**2).mean()

    layer = {
        **{name: shaped(width, width) for name in ("q", "out")},
        **{name: shaped(width, groups * head) for name in ("k", "v")},
        **{name: shaped(width, hidden) for name in ("gate", "up")},
        "down": shaped(hidden, width),
    }
    return _gradient(loss, [layer] * layers, shaped(batch, sequence, width))


def _experts(layers: int) -> Any:
    """A mixture of experts: every token through all of them, weighed by its two best."""
    tokens, width, experts, hidden = 2048, 512, 8, 1024

    def loss(kernels: list[tuple[jax.Array, ...]], x: jax.Array) -> jax.Array:
        for router, up, down in kernels:
            normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
            best, chosen = jax.lax.top_k(jax.nn.softmax(normed @ router), 2)
            weights = (jax.nn.one_hot(chosen, experts) * best[..., None]).sum(-2)
            inner = jax.nn.gelu(jnp.einsum("td,edf->tef", normed, up))
            x = x + jnp.einsum("tef,efd,te->td", inner, down, weights)
        return (x**2).mean()

    kernels = shaped(width, experts), shaped(experts, width, hidden), shaped(experts, hidden, width)
    return _gradient(loss, [kernels] * layers, shaped(tokens, width))


def _deep_unet(blocks: int) -> Any:
    """Three levels with so many convolutions each, down and up again."""

    def run(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = jax.nn.silu(convolve(x, kernel))
        return x

    def loss(parameters: list[list[jax.Array]], x: jax.Array) -> jax.Array:
        skipped = []
        for kernels in parameters[:3]:
            x = run(kernels, x)
            skipped.append(x)
            x = x[:, ::2, ::2]
        for first, *kernels in parameters[3:]:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = jnp.concatenate([x, skipped.pop()], axis=-1)
            x = run(kernels, jax.nn.silu(convolve(x, first)))
        return (x**2).mean()

    kernel, wide = shaped(3, 3, CHANNELS, CHANNELS), shaped(3, 3, 2 * CHANNELS, CHANNELS)
    down, up = [[kernel] * blocks] * 3, [[wide, *[kernel] * (blocks - 1)]] * 3
    return _gradient(loss, [*down, *up], shaped(IMAGES, SIZE, SIZE, CHANNELS))


def _unet(levels: int) -> Any:
    def loss(parameters: tuple[list[jax.Array], list[jax.Array]], x: jax.Array) -> jax.Array:
        down, up = parameters
        skipped = []
        for kernel in down:
            x = jax.nn.silu(convolve(x, kernel))
            skipped.append(x)
            x = x[:, ::2, ::2]
        for kernel in up:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = jax.nn.silu(convolve(jnp.concatenate([x, skipped.pop()], axis=-1), kernel))
        return (x**2).mean()

    down = [shaped(3, 3, CHANNELS, CHANNELS)] * levels
    up = [shaped(3, 3, 2 * CHANNELS, CHANNELS)] * levels
    return _gradient(loss, (down, up), shaped(IMAGES, SIZE, SIZE, CHANNELS))


def _lstm(steps: int) -> Any:
    def loss(kernel: jax.Array, xs: jax.Array) -> jax.Array:
        hidden = memory = jnp.zeros((ROWS, WIDTH // 2))
        for step in range(steps):
            gates = jnp.concatenate([xs[step], hidden], axis=-1) @ kernel
            enter, forget, leave, update = jnp.split(gates, 4, axis=-1)
            memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(update)
            hidden = jax.nn.sigmoid(leave) * jnp.tanh(memory)
        return (hidden**2).mean()

    return _gradient(loss, shaped(WIDTH, 2 * WIDTH), shaped(steps, ROWS, WIDTH // 2))


def _recurrent(steps: int) -> Any:
    def loss(kernel: jax.Array, xs: jax.Array) -> jax.Array:
        hidden = jnp.zeros((ROWS, WIDTH))
        for step in range(steps):
            hidden = jnp.tanh(hidden @ kernel + xs[step])
        return (hidden**2).mean()

    return _gradient(loss, _square(), shaped(steps, ROWS, WIDTH))


def _associative_scan(layers: int, steps: int) -> Any:
    def combine(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * one[1] + other[1]

    def loss(kernels: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for decay, enter in kernels:
            pairs = jax.nn.sigmoid(x @ decay), x @ enter
            x = x + jax.lax.associative_scan(combine, pairs, axis=1)[1]
        return (x**2).mean()

    kernels = [(_square(), _square())] * layers
    return _gradient(loss, kernels, shaped(ROWS // steps, steps, WIDTH))


def _messages(rounds: int) -> Any:
    """Messages along edges, added up by node."""

    def loss(kernels: list[jax.Array], nodes: jax.Array, edges: jax.Array) -> jax.Array:
        for kernel in kernels:
            pairs = jnp.concatenate([nodes[edges[0]], nodes[edges[1]]], axis=-1)
            sent = jax.nn.relu(pairs @ kernel)
            nodes = nodes + jax.ops.segment_sum(sent, edges[1], ROWS // 4)
        return (nodes**2).mean()

    edges = shaped(2, ROWS, dtype="int32")
    kernels = [shaped(2 * WIDTH, WIDTH)] * rounds
    return _gradient(loss, kernels, shaped(ROWS // 4, WIDTH), edges)


def _random(seed: int, steps: int = 9) -> Any:
    """Products, and elementwise work on values from up to three steps back."""

    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        draw, values, left = random.Random(seed), [x], list(kernels)
        for _ in range(steps):
            value, other = values[-1], draw.choice(values[-3:])
            kind = draw.choice(["product", "product", "tanh", "add", "multiply", "norm"])
            if kind == "product":
                value = value @ left.pop()
            elif kind == "tanh":
                value = jnp.tanh(value)
            elif kind == "add":
                value = value + jnp.sin(other)
            elif kind == "multiply":
                value = value * other
            else:
                value = value * jax.lax.rsqrt((value**2).mean(-1, keepdims=True) + 1.0)
            values.append(value)
        return (values[-1] ** 2).mean()

    return _gradient(loss, [_square()] * steps, _square(ROWS))


GRAPHS: dict[str, Graph] = {
    **{f"MLP, tanh, {n} layers": partial(_mlp, jnp.tanh, n) for n in (3, 4, 6, 8)},
    **{f"MLP, ReLU, {n} layers": partial(_mlp, jax.nn.relu, n) for n in (3, 5)},
    **{f"MLP, GELU, {n} layers": partial(_mlp, jax.nn.gelu, n) for n in (3, 4)},
    **{f"residual, ReLU, {n} layers": partial(_residual, jax.nn.relu, n) for n in (2, 3)},
    **{f"residual, GELU, {n} layers": partial(_residual, jax.nn.gelu, n) for n in (2, 3)},
    **{f"gated, {n} layers": partial(_gated, n) for n in (1, 2)},
    "autoencoder, 3 levels": partial(_pyramid, 3),
    "transformer, 1 layer": partial(_gpt, layers=1),
    "transformer, 2 layers": partial(_gpt, layers=2),
    "attention": partial(_attention, 16),
    **{f"convolutions, {n}": partial(_convolutions, n, residual=False) for n in (3, 5)},
    **{f"residual convolutions, {n}": partial(_convolutions, n, residual=True) for n in (3, 5)},
    **{f"U-Net, {n} levels": partial(_unet, n) for n in (2, 3)},
    **{f"LSTM, {n} steps": partial(_lstm, n) for n in (2, 3)},
    **{f"recurrent, {n} steps": partial(_recurrent, n) for n in (4, 8)},
    "associative scan, 1 layer": partial(_associative_scan, 1, 4),
    "messages, 2 rounds": partial(_messages, 2),
    **{f"random {seed}": partial(_random, seed) for seed in range(8)},
}


_SIZES = (1, 2, 6, 12)

LARGE: dict[str, Graph] = {
    **{f"GPT, {n} layers": partial(_gpt, layers=n) for n in _SIZES},
    **{f"Llama-style, {n} layers": partial(_llama, n) for n in _SIZES},
    **{f"gated, {n} layers": partial(_gated, n) for n in _SIZES[2:]},
    **{f"experts, {n} layers": partial(_experts, n) for n in _SIZES},
    **{
        f"residual convolutions, {4 * n}": partial(_convolutions, 4 * n, residual=True)
        for n in _SIZES[1:]
    },
    **{f"U-Net, 3 levels of {n}": partial(_deep_unet, n) for n in _SIZES},
}
"""Steps of up to a thousand kernels, of which only a bound on the optimum is known."""
