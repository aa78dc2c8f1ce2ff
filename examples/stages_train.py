"""An encoder-decoder trained in stages: several programs on several devices.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/stages_train.py

The layers differ, and are not in a scan, so that no one program of equal stages can run them. The
plan is printed, with what crosses between the stages and the schedule; then the loss falls.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import hloom

LAYERS, WIDTH, BATCH, STEPS, RATE = 4, 64, 64, 20, 0.3

Parameters = dict[str, Any]


def loss(params: Parameters, source: jax.Array, target: jax.Array) -> jax.Array:
    """How far the decoder's output is from the target: a mean over the examples."""
    memory = source
    for layer in params["encoder"]:
        memory = memory + jnp.tanh(memory @ layer["up"]) @ layer["down"]
    x = jnp.zeros_like(target)
    for layer in params["decoder"]:
        x = x + jnp.tanh(x @ layer["own"] + memory @ layer["cross"]) @ layer["down"]
    return jnp.mean((x @ params["out"] - target) ** 2)


def parameters(key: jax.Array) -> Parameters:
    """Random ones."""
    keys = iter(jax.random.split(key, 5 * LAYERS + 1))

    def matrices(*names: str) -> dict[str, jax.Array]:
        return {name: jax.random.normal(next(keys), (WIDTH, WIDTH)) / WIDTH**0.5 for name in names}

    return {
        "encoder": [matrices("up", "down") for _ in range(LAYERS)],
        "decoder": [matrices("own", "cross", "down") for _ in range(LAYERS)],
        "out": matrices("out")["out"],
    }


def main() -> None:
    """Trains, and prints what was planned."""
    key, *keys = jax.random.split(jax.random.key(0), 3)
    source = jax.random.normal(keys[0], (BATCH, WIDTH))
    target = jnp.roll(source, 1, axis=1)

    step = hloom.stages(loss, stages=4, microbatches=8, schedule="1f1b")
    params = step.place(parameters(key), source, target)
    print(step.plan)
    for number in range(STEPS):
        value, gradients = step(params, source, target)
        params = jax.tree.map(lambda x, gradient: x - RATE * gradient, params, gradients)
        if number in (0, STEPS - 1):
            print(f"step {number}: loss {value:.4f}")
    whole = step.gather(params)
    print(f"a single program's loss: {jax.jit(loss)(whole, source, target):.4f}")


if __name__ == "__main__":
    main()
