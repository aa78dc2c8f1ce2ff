"""Trains a decoder with logical axes, as MaxText's are, as a pipeline beside data parallelism.

    JAX_HLOOM=off python examples/pipeline_logical_axes.py
    JAX_HLOOM='pipeline{axis=stage microbatches=4}' python examples/pipeline_logical_axes.py

Every weight and activation names its axes, `nn.scan` stacks the layers and names that axis, and
rules say what axis of the mesh each name is on. The pipeline is one rule: layers are on `stage`. It
runs on the first 4 devices as 2 x 2, on a CPU on 4 virtual ones.

Prints the loss as it falls, and how much temporary memory a training step takes on a device.
"""

import os
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding, PartitionSpec

LAYERS, WIDTH, HEADS, HEAD_SIZE, HIDDEN = 4, 64, 4, 16, 192
BATCH, SEQUENCE, STEPS = 8, 64, 10

RULES = (("layers", "stage"), ("batch", "data"))
"""Names without a rule are on every device."""


def dense(features, axes, *, inputs=(-1,), name):
    """A product whose weights have named axes."""
    init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), axes)
    return nn.DenseGeneral(features, axis=inputs, use_bias=False, kernel_init=init, name=name)


def rotated(x):
    """Queries or keys [example, position, head, size], turned by their positions."""
    rates = 1e4 ** (-jnp.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2))
    angles = jnp.arange(x.shape[1])[:, None, None] * rates
    first, second = jnp.split(x, 2, -1)
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


class DecoderLayer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))
        scale = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
        normed = nn.RMSNorm(scale_init=scale, name="attention_norm")(x)
        axes = ("embed", "heads", "head_size")
        query, key, value = (
            dense((HEADS, HEAD_SIZE), axes, name=name)(normed) for name in ("query", "key", "value")
        )
        mixed = jax.nn.dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        axes = ("heads", "head_size", "embed")
        x = x + dense(WIDTH, axes, inputs=(-2, -1), name="out")(mixed)
        normed = nn.RMSNorm(scale_init=scale, name="perceptron_norm")(x)
        gate = nn.silu(dense(HIDDEN, ("embed", "mlp"), name="gate")(normed))
        hidden = gate * dense(HIDDEN, ("embed", "mlp"), name="up")(normed)
        return x + dense(WIDTH, ("mlp", "embed"), name="down")(hidden), None


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("vocabulary", "embed"))
        embedding = nn.Embed(256, WIDTH, embedding_init=init)
        layers = nn.scan(
            nn.remat(DecoderLayer, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        x, _ = layers(name="layers")(embedding(tokens), None)
        return embedding.attend(nn.RMSNorm(name="norm")(x))


def main():
    axes = {"axis_types": (AxisType.Auto,) * 2, "devices": jax.devices()[:4]}
    mesh = jax.make_mesh((2, 2), ("data", "stage"), **axes)
    rows, whole = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("data",), ()))
    model, optimizer = Decoder(), optax.adamw(3e-3)

    def start():
        params = model.init(jax.random.key(0), jnp.zeros((1, SEQUENCE), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    names = nn.get_partition_spec(jax.eval_shape(start))
    placed = nn.logical_to_mesh_sharding(names, mesh, RULES)
    state = jax.jit(lambda: nn.unbox(start()), out_shardings=placed)()

    def train_step(state, batch):
        def loss(params):
            logits = state.apply_fn({"params": params}, batch[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradient), value

    text = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int32)
    starts = np.random.default_rng(0).integers(0, len(text) - SEQUENCE, (STEPS, BATCH))
    batches = text[starts[..., None] + np.arange(SEQUENCE + 1)]

    train_step = jax.jit(
        train_step, in_shardings=(placed, rows), out_shardings=(placed, whole), donate_argnums=0
    )
    with mesh, nn.logical_axis_rules(RULES):
        train_step = train_step.lower(state, batches[0]).compile()
        for number, batch in enumerate(batches, start=1):
            state, loss = train_step(state, batch)
            print(f"step {number:2d}  loss {loss:.5f}")
    memory = train_step.memory_analysis()
    print(f"temporary memory of a step: {memory.temp_size_in_bytes / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
