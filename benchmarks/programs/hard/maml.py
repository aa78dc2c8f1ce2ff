"""MAML: the gradient through a step of gradient descent on each task; scanned layers."""

from __future__ import annotations

from typing import Any

import jax

from benchmarks.programs.common import Checkpoint, Parameters, cross_entropy, shaped

LAYERS, WIDTH, HIDDEN, CLASSES = 8, 512, 2048, 1000
TASKS, EXAMPLES = 4, 2048
RATE = 0.01


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of the loss after the inner step in float32, and its arguments."""
    layer = checkpoint(_layer)

    def task_loss(parameters: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda c, p: (layer(c, p), None), x, parameters["layers"])
        return cross_entropy(x @ parameters["out"], labels)

    def adapted_loss(parameters: Parameters, task: Parameters) -> jax.Array:
        gradients = jax.grad(task_loss)(parameters, *task["support"])
        adapted = jax.tree.map(lambda old, slope: old - RATE * slope, parameters, gradients)
        return task_loss(adapted, *task["query"])

    def loss(parameters: Parameters, tasks: Parameters) -> jax.Array:
        return jax.vmap(adapted_loss, in_axes=(None, 0))(parameters, tasks).mean()

    parameters: Parameters = {
        "layers": {"up": shaped(LAYERS, WIDTH, HIDDEN), "down": shaped(LAYERS, HIDDEN, WIDTH)},
        "out": shaped(WIDTH, CLASSES),
    }
    examples = (shaped(TASKS, EXAMPLES, WIDTH), shaped(TASKS, EXAMPLES, dtype="int32"))
    return jax.value_and_grad(loss), (parameters, {"support": examples, "query": examples})


def _layer(x: jax.Array, p: Parameters) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    normed = centered * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(normed @ p["up"]) @ p["down"]
