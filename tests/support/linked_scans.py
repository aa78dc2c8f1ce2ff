"""Programs of scans whose stacks several loops read, in chains or side by side."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from support.programs import Program, normal

LINKED: dict[str, Program] = {}


def layer(c: Any, w: Any) -> Any:
    return c + jnp.tanh(jax.nn.gelu(c @ w) * jax.nn.sigmoid(c))


def energy(w: Any, x: Any, *, checkpoint: bool = False, reverse: bool = False) -> Any:
    body = jax.checkpoint(layer, prevent_cse=False) if checkpoint else layer
    return (lax.scan(lambda c, w: (body(c, w), None), x, w, reverse=reverse)[0] ** 2).mean()


def by_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a backward pass of its own, which calls `jax.vjp`."""
    own = jax.custom_vjp(function)
    own.defvjp(lambda *a: (function(*a), a), lambda a, g: jax.vjp(function, *a)[1](g))
    return own


def arguments(length: int = 4) -> tuple[Any, Any]:
    return normal(length, 8, 8, seed=1) / 3, normal(32, 8)


def forces(w: Any, x: Any, **options: bool) -> Any:
    return (jax.grad(lambda x: energy(w, x, **options))(x) ** 2).sum() * 1e2


def adapted(w: Any, x: Any, **options: bool) -> Any:
    """A step on one half of the batch, and the loss on the other."""
    step = w - 0.1 * jax.grad(energy)(w, x[:16], **options)
    return energy(step, x[16:], **options)


def adapted_for_long(w: Any, x: Any) -> Any:
    """Some steps in a scan, and the loss after them."""
    batches = x.reshape(4, 8, 8)
    steps = lax.scan(lambda w, x: (w - 0.1 * jax.grad(energy)(w, x), None), w, batches)
    return energy(steps[0], x)


def along(w: Any, x: Any) -> Any:
    return jnp.vdot(jax.grad(energy)(w, x), jnp.cos(w))


def pulled_twice(w: Any, x: Any) -> Any:
    """Two backward passes of one forward pass."""
    out, pull = jax.vjp(lambda x: lax.scan(lambda c, w: (layer(c, w), None), x, w)[0], x)
    return (pull(jnp.sin(out))[0] * pull(jnp.cos(out))[0]).sum()


def without_gradient(w: Any, x: Any) -> Any:
    def writes(c: Any, w: Any) -> Any:
        h = jax.nn.gelu(c @ w)
        return layer(c, w), (h * 2, jax.nn.sigmoid(h), jnp.exp(-h))

    c, stacks = lax.scan(writes, x, w)
    return lax.scan(lambda c, a: (jnp.tanh(c * a[1] + a[0] * a[2]), None), c, stacks)[0]


def three_in_a_row(w: Any, x: Any) -> Any:
    """The third loop reads what the first and the second stack, the second what the first does."""

    def first(c: Any, w: Any) -> Any:
        h = jnp.sin(c @ w)
        return jnp.tanh(h), (h * 2, jnp.exp(-h * h))

    def second(c: Any, a: Any) -> Any:
        h = jnp.cos(c * a[0]) + a[1]
        return jnp.tanh(c + h), (jnp.sin(h), h * a[1])

    c, one = lax.scan(first, x, w)
    c, two = lax.scan(second, c, one, reverse=True)
    return lax.scan(lambda c, a: (jnp.tanh(c + sum(a)), None), c, (*one, *two))[0]


def gradient(function: Callable[..., Any], length: int = 4) -> Program:
    return lambda: (jax.value_and_grad(function, (0, 1)), arguments(length))


LINKED["own_backward_pass"] = gradient(by_itself(energy))
LINKED["checkpoint_of_all"] = gradient(jax.checkpoint(energy))
LINKED["checkpoint_of_layers"] = gradient(lambda w, x: energy(w, x, checkpoint=True))
LINKED["forces"] = gradient(forces)
LINKED["forces_reversed"] = gradient(lambda w, x: forces(w, x, reverse=True))
LINKED["forces_of_checkpointed_layers"] = gradient(lambda w, x: forces(w, x, checkpoint=True))
LINKED["forces_of_one_layer"] = gradient(forces, 1)
LINKED["forces_of_no_layer"] = gradient(forces, 0)
LINKED["adapted"] = gradient(adapted)
LINKED["adapted_for_long"] = gradient(adapted_for_long)
LINKED["along"] = gradient(along)
LINKED["pulled_twice"] = gradient(pulled_twice)
LINKED["without_gradient"] = lambda: (without_gradient, arguments())
LINKED["three_in_a_row"] = lambda: (three_in_a_row, arguments())
LINKED["three_in_a_row_backward"] = gradient(lambda w, x: three_in_a_row(w, x).sum())


def random_chain(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Loops that read stacks of the loops before them, and derivatives of up to second order."""
    draw = random.Random(seed)
    length, order, loops = draw.randint(2, 4), draw.randint(0, 2), draw.randint(2, 3)
    steps = [draw.getrandbits(32) for _ in range(loops)]

    def loop(c: Any, stacks: list[Any], plan: int) -> tuple[Any, list[Any]]:
        taken = random.Random(plan)
        xs = [one for one in stacks if taken.random() < 0.6] or stacks[:1]
        reverse = taken.random() < 0.4

        def body(c: Any, xs: list[Any]) -> tuple[Any, list[Any]]:
            chosen = random.Random(plan + 1)
            values = [c, *xs]
            for _ in range(chosen.randint(2, 5)):
                a, b = chosen.choice(values), chosen.choice(values)
                kinds = (jnp.sin(a) * b, jnp.tanh(a + b), jnp.exp(-a * a), a @ b / 8, a - b.mean(0))
                values.append(chosen.choice(kinds))
            return jnp.tanh(c + values[-1]), [chosen.choice(values) for _ in range(2)]

        c, made = lax.scan(body, c, xs, reverse=reverse)
        return c, [*stacks, *made]

    def function(w: Any, x: Any) -> Any:
        c, stacks = x, [w]
        for plan in steps:
            c, stacks = loop(c, stacks, plan)
        return (c**2).mean() + stacks[-1].mean()

    found: Callable[..., Any] = function
    if order > 1:
        found = lambda w, x: sum((g**2).sum() for g in jax.grad(function, (0, 1))(w, x))  # noqa: E731
    if order:
        found = jax.value_and_grad(found, (0, 1))
    return found, (normal(length, 8, 8, seed=seed) / 2, normal(8, 8, seed=seed + 1))
