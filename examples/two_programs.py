"""A forward and a backward program of one step: several cotangents for one forward pass.

    python examples/two_programs.py

Two tasks share an encoder. Its forward program runs once, its backward program once for each task,
so that the two gradients can be compared, and combined where they do not conflict (PCGrad, Yu et
al., 2020). What the encoder holds in between is printed, then with a bound on it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import hloom

LAYERS, WIDTH, BATCH, STEPS, RATE = 4, 256, 128, 5, 0.1

Parameters = dict[str, Any]


def encoder(parameters: Parameters, x: jax.Array) -> jax.Array:
    """A tower of residual layers."""
    for weights in parameters["layers"]:
        x = x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]
    return x


def first_task(features: jax.Array, x: jax.Array) -> jax.Array:
    """Tells how large the inputs are."""
    return ((features.mean(1) - (x**2).mean(1)) ** 2).mean()


def second_task(features: jax.Array, x: jax.Array) -> jax.Array:
    """Gives the inputs back, shifted."""
    return ((features - jnp.roll(x, 1, axis=1)) ** 2).mean()


def combined(one: Parameters, other: Parameters) -> Parameters:
    """The sum of two gradients, the second without what conflicts with the first."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    overlap = sum(jnp.vdot(a, b) for a, b in pairs)
    length = sum(jnp.vdot(a, a) for a in jax.tree.leaves(one))
    share = jnp.minimum(overlap, 0.0) / length
    return jax.tree.map(lambda a, b: a + b - share * a, one, other)


def main() -> None:
    """Trains, and prints what stands between the two programs."""
    keys = iter(jax.random.split(jax.random.key(0), 2 * LAYERS + 1))
    shapes = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = [
        {name: 0.02 * jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]
    parameters, x = {"layers": layers}, jax.random.normal(next(keys), (BATCH, WIDTH))
    forward, backward = hloom.split(encoder)
    tasks = [jax.jit(jax.value_and_grad(task)) for task in (first_task, second_task)]
    combine = jax.jit(combined)
    for step in range(STEPS):
        features, residuals = forward(parameters, x)
        if step == 0:
            print(residuals)
        (one, of_first), (other, of_second) = (task(features, x) for task in tasks)
        gradient = combine(backward(residuals, of_first), backward(residuals, of_second))
        parameters = jax.tree.map(lambda p, g: p - RATE * g, parameters, gradient)
        print(f"step {step}: losses {one:.4f} and {other:.4f}")
    bounded, _ = hloom.split(encoder, residuals=residuals.nbytes // 2)
    print(f"within half: {bounded.eval_shape(parameters, x)[1].nbytes >> 10} KiB")
    print(hloom.records("encoder")[-1].runs[-1].summary)


if __name__ == "__main__":
    main()
