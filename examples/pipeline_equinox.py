"""Trains a small Equinox model as a pipeline over an axis of the mesh, `stage`.

    JAX_HLOOM=off python examples/pipeline_equinox.py
    JAX_HLOOM='pipeline{axis=stage microbatches=8}' python examples/pipeline_equinox.py

The blocks are made by `eqx.filter_vmap` and run by `jax.lax.scan`; one rule shards what they have
stacked along the layers. It runs on the first 4 devices, on a CPU on 4 virtual ones.

Prints the loss as it falls, and how much temporary memory a training step takes on a device.
"""

import os
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

LAYERS, WIDTH, HEADS = 4, 64, 4
BATCH, SEQUENCE, STEPS = 8, 64, 10


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    attention_norm: eqx.nn.LayerNorm
    perceptron: eqx.nn.MLP
    perceptron_norm: eqx.nn.LayerNorm

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=first)
        self.attention_norm = eqx.nn.LayerNorm(WIDTH)
        self.perceptron = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=second)
        self.perceptron_norm = eqx.nn.LayerNorm(WIDTH)

    def __call__(self, x):
        """Of one example [position, width]."""
        causal = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
        normed = jax.vmap(self.attention_norm)(x)
        x = x + self.attention(normed, normed, normed, mask=causal)
        return x + jax.vmap(self.perceptron)(jax.vmap(self.perceptron_norm)(x))


class LanguageModel(eqx.Module):
    embedding: eqx.nn.Embedding
    position: eqx.nn.Embedding
    blocks: Block
    head: eqx.nn.Linear

    def __init__(self, key):
        first, second, third, fourth = jax.random.split(key, 4)
        self.embedding = eqx.nn.Embedding(256, WIDTH, key=first)
        self.position = eqx.nn.Embedding(SEQUENCE, WIDTH, key=second)
        self.blocks = eqx.filter_vmap(Block)(jax.random.split(third, LAYERS))
        self.head = eqx.nn.Linear(WIDTH, 256, key=fourth)

    def __call__(self, tokens):
        """Of a batch [example, position]."""
        stacked, static = eqx.partition(self.blocks, eqx.is_array)

        def run_block(x, own):
            return jax.vmap(eqx.combine(own, static))(x), None

        x = self.embedding.weight[tokens] + self.position.weight
        x, _ = jax.lax.scan(run_block, x, stacked)
        return jax.vmap(jax.vmap(self.head))(x)


def main():
    mesh = jax.make_mesh((4,), ("stage",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    whole = NamedSharding(mesh, PartitionSpec())

    def sharding_of(path, leaf):
        """Layers over `stage`, all else on every device."""
        is_stacked = "blocks" in jax.tree_util.keystr(path)
        return NamedSharding(mesh, PartitionSpec("stage")) if is_stacked else whole

    model, static = eqx.partition(eqx.filter_jit(LanguageModel)(jax.random.key(0)), eqx.is_array)
    optimizer = optax.adamw(3e-3)
    state = model, optimizer.init(model)
    placed = jax.tree_util.tree_map_with_path(sharding_of, state)
    state = jax.device_put(state, placed)

    def train_step(state, batch):
        model, moments = state

        def loss(model):
            logits = eqx.combine(model, static)(batch[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(model)
        updates, moments = optimizer.update(gradient, moments, model)
        return (optax.apply_updates(model, updates), moments), value

    text = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int32)
    starts = np.random.default_rng(0).integers(0, len(text) - SEQUENCE, (STEPS, BATCH))
    batches = text[starts[..., None] + np.arange(SEQUENCE + 1)]

    train_step = jax.jit(
        train_step,
        in_shardings=(placed, whole),
        out_shardings=(placed, whole),
        donate_argnums=0,
    )
    train_step = train_step.lower(state, batches[0]).compile()
    for number, batch in enumerate(batches, start=1):
        state, loss = train_step(state, batch)
        print(f"step {number:2d}  loss {loss:.5f}")
    memory = train_step.memory_analysis()
    print(f"temporary memory of a step: {memory.temp_size_in_bytes / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
