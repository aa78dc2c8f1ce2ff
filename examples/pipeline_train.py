"""Trains the model of flax_train.py as a pipeline over an axis of the mesh, `stage`.

    JAX_HLOOM=off python examples/pipeline_train.py
    JAX_HLOOM='pipeline{axis=stage microbatches=8}' python examples/pipeline_train.py

The model is not changed. Its layers are stacked and scanned; one rule shards the stacks along the
layers. It runs on the first 4 devices, on a CPU on 4 virtual ones.

Prints the loss as it falls, and how much temporary memory a training step takes on a device.
"""

import os
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import numpy as np
import optax
from flax import nnx
from flax_train import BATCH, LAYERS, SEQUENCE, STEPS, LanguageModel
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def main():
    mesh = jax.make_mesh((4,), ("stage",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])

    def sharding_of(path, leaf):
        """Layers over `stage`, all else on every device."""
        is_stacked = "blocks" in jax.tree_util.keystr(path) and leaf.shape[:1] == (LAYERS,)
        return NamedSharding(mesh, PartitionSpec("stage") if is_stacked else PartitionSpec())

    model = LanguageModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))
    placed = jax.tree_util.tree_map_with_path(sharding_of, state)
    state = jax.device_put(state, placed)

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
    whole = NamedSharding(mesh, PartitionSpec())

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
