"""Trains a small language model on this file, with JAX alone.

    python examples/plain_train.py
    JAX_HLOOM='fit{budget=60%}' python examples/plain_train.py

Prints the loss as it falls, and how much temporary memory XLA needs for a training step.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS = 4, 64, 4
BATCH, SEQUENCE, STEPS = 8, 128, 10
RATE, MOMENTUM = 0.3, 0.9


def init(key):
    keys = jax.random.split(key, 7)

    def matrix(key, *shape):
        return jax.random.normal(key, shape) * shape[-2] ** -0.5

    layers = {
        "query_key_value": matrix(keys[0], LAYERS, WIDTH, 3 * WIDTH),
        "attention_out": matrix(keys[1], LAYERS, WIDTH, WIDTH),
        "up": matrix(keys[2], LAYERS, WIDTH, 4 * WIDTH),
        "down": matrix(keys[3], LAYERS, 4 * WIDTH, WIDTH),
    }
    return {
        "embedding": jax.random.normal(keys[4], (256, WIDTH)),
        "position": jax.random.normal(keys[5], (SEQUENCE, WIDTH)),
        "layers": layers,
        "head": matrix(keys[6], WIDTH, 256) / 10,
    }


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def layer(x, weights):
    heads = (norm(x) @ weights["query_key_value"]).reshape(*x.shape[:2], 3, HEADS, -1)
    query, key, value = (heads[:, :, each] for each in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
    weighted = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weighted, value).reshape(x.shape)
    x = x + mixed @ weights["attention_out"]
    return x + jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"], None


def loss(weights, batch):
    x = weights["embedding"][batch[:, :-1]] + weights["position"]
    x, _ = jax.lax.scan(layer, x, weights["layers"])
    log_probabilities = jax.nn.log_softmax(norm(x) @ weights["head"])
    return -jnp.take_along_axis(log_probabilities, batch[:, 1:, None], axis=-1).mean()


def train_step(state, batch):
    weights, velocity = state
    value, gradient = jax.value_and_grad(loss)(weights, batch)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + (1 - MOMENTUM) * g, velocity, gradient)
    return (jax.tree.map(lambda w, v: w - RATE * v, weights, velocity), velocity), value


def main():
    text = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int32)
    starts = np.random.default_rng(0).integers(0, len(text) - SEQUENCE, (STEPS, BATCH))
    batches = text[starts[..., None] + np.arange(SEQUENCE + 1)]

    weights = init(jax.random.key(0))
    state = weights, jax.tree.map(jnp.zeros_like, weights)
    step = jax.jit(train_step, donate_argnums=0)
    memory = step.lower(state, batches[0]).compile().memory_analysis()
    for number, batch in enumerate(batches, start=1):
        state, value = step(state, batch)
        print(f"step {number:2d}  loss {value:.5f}")
    print(f"temporary memory of a step: {memory.temp_size_in_bytes / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
