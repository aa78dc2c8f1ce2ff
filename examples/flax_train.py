"""Trains a small language model on this file, with Flax and Optax.

    python examples/flax_train.py
    JAX_HLOOM=remat python examples/flax_train.py

Prints the loss as it falls, and how much temporary memory XLA needs for a training step.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

LAYERS, WIDTH, HEADS = 4, 64, 4
BATCH, SEQUENCE, STEPS = 8, 128, 10


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(
            num_heads=HEADS, in_features=WIDTH, decode=False, rngs=rngs
        )
        self.attention_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.perceptron_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        causal = nnx.make_causal_mask(x[..., 0])
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=causal))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.perceptron_norm(x)))))


class LanguageModel(nnx.Module):
    def __init__(self, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap
        def make_blocks(rngs):
            return Block(rngs)

        self.embedding = nnx.Embed(256, WIDTH, rngs=rngs)
        self.position = nnx.Embed(SEQUENCE, WIDTH, rngs=rngs)
        self.blocks = make_blocks(rngs)
        self.head = nnx.Linear(WIDTH, 256, rngs=rngs)

    def __call__(self, tokens):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run_blocks(x, block):
            return block(x)

        x = self.embedding(tokens) + self.position(jnp.arange(SEQUENCE))
        return self.head(run_blocks(x, self.blocks))


def main():
    model = LanguageModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def train_step(state, batch):
        model, optimizer = nnx.merge(graph, state)

        def loss(model):
            logits = model(batch[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return nnx.state((model, optimizer)), value

    text = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int32)
    starts = np.random.default_rng(0).integers(0, len(text) - SEQUENCE, (STEPS, BATCH))
    batches = text[starts[..., None] + np.arange(SEQUENCE + 1)]

    train_step = jax.jit(train_step, donate_argnums=0)
    memory = train_step.lower(state, batches[0]).compile().memory_analysis()
    for number, batch in enumerate(batches, start=1):
        state, loss = train_step(state, batch)
        print(f"step {number:2d}  loss {loss:.5f}")
    print(f"temporary memory of a step: {memory.temp_size_in_bytes / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
