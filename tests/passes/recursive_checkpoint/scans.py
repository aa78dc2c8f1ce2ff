"""Random scans and what is differentiated of them: carries, stacks, directions, keys, nesting."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

WIDTH = 3

OPERATIONS: dict[str, Callable[..., Any]] = {
    "sin": lambda u, other, x, w: jnp.sin(u) * x,
    "mul": lambda u, other, x, w: u * other + x,
    "tanh": lambda u, other, x, w: jnp.tanh(u),
    "dot": lambda u, other, x, w: u @ w,
    "add": lambda u, other, x, w: u + other * 0.3,
    "exp": lambda u, other, x, w: jnp.exp(-u * u),
}

MODES: dict[str, Callable[[Any], Any]] = {
    "gradient": lambda f: jax.grad(f, (0, 1, 2)),
    "value and gradient": lambda f: jax.value_and_grad(f, (0, 1, 2)),
    "tangents of the gradient": lambda f: lambda *a: jax.jvp(jax.grad(f, (0, 1, 2)), a, a),
    "gradient of forces": lambda f: jax.grad(
        lambda w, x, xs: (jax.grad(f, 1)(w, x, xs) ** 2).sum(), (0, 1)
    ),
}


def scan_of(seed: int) -> tuple[Any, tuple[Any, ...], str]:
    """Returns a function, its arguments, and options of the pass."""
    draw = random.Random(seed)
    trips, width = draw.randint(4, 14), draw.randint(1, 3)
    operations = [draw.choice([*OPERATIONS]) for _ in range(draw.randint(1, 4))]

    def may(share: float) -> bool:
        return draw.random() < share

    reverse, checkpoint, counts, keys = may(0.3), may(0.3), may(0.3), may(0.25)
    nested, outputs, adds, second = may(0.25), may(0.5), may(0.3), may(0.3)

    def body(carry: Any, x: Any) -> Any:
        (i, key, total, *values), (x, w) = carry, x
        new = []
        for number, value in enumerate(values):
            for name in operations:
                value = OPERATIONS[name](value, values[(number + 1) % width], x, w)
            new.append(value)
        if counts:
            new[0] *= 1 + 0.1 * i
        if keys:
            key, own = jax.random.split(key)
            new[0] += 0.1 * jax.random.bernoulli(own, 0.5, (WIDTH,))
        if nested:
            first = new[0]
            inner = lambda d, _: (jnp.sin(d) + first * 0.1, None)  # noqa: E731
            new[-1] = lax.scan(inner, new[-1], None, length=3)[0]
        if adds:
            total += (new[0] ** 2).sum()
        return (i + 1, key, total, *new), jnp.cos(new[0]) if outputs else None

    def loss(w: Any, x: Any, xs: Any) -> Any:
        run = jax.checkpoint(body) if checkpoint else body
        start = (0, jax.random.key(1), 0.0, *[x * (number + 1) for number in range(width)])
        run_w = lambda c, x: run(c, (x, w))  # noqa: E731
        last, ys = lax.scan(run_w, start, xs, reverse=reverse)
        out = (last[-1] ** 2).sum() + last[2]
        if outputs:
            out += (ys.sum(0) * x).sum() + ys[trips // 2].sum()
        if second:
            out += (lax.scan(lambda g, y: (g * y + jnp.sin(g), None), last[3], xs)[0] ** 2).sum()
        return out

    function = MODES[draw.choice([*MODES])](loss)
    keys_ = jax.random.split(jax.random.key(seed), 3)
    shapes = (WIDTH, WIDTH), (WIDTH,), (trips, WIDTH)
    arguments = tuple(
        jax.random.normal(key, shape) / 2 for key, shape in zip(keys_, shapes, strict=True)
    )
    options = (
        "",
        " levels=2",
        " levels=3",
        " share=0.6",
        " segments=3",
        " residuals=0.3 share=0.5",
    )
    return function, arguments, draw.choice(options)
