"""Trains a mixture of experts, one expert a device, on this file's text.

    export XLA_FLAGS=--xla_force_host_platform_device_count=8       (on a CPU)
    JAX_HLOOM=barriers python examples/mixture_of_experts.py
    python examples/mixture_of_experts.py --dense

Each token goes to the device of its expert and back by `jax.lax.ragged_all_to_all`: no capacity,
no padding on the way, no token dropped. XLA has no such operation for CPUs; hloom's kernel serves.
With --dense every expert works on every token and a mask picks one: the same losses, more work.
Prints the loss as it falls and the tokens that each expert got in the last step.
"""

import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, HIDDEN, CONTEXT = 32, 64, 8
TOKENS, STEPS = 64, 20  # tokens: of one device


def init(key, experts):
    keys = iter(jax.random.split(key, 8))

    def dense(*shape):
        return jax.random.normal(next(keys), shape) / np.sqrt(shape[-2])

    return {
        "embedding": dense(256, WIDTH),
        "mix": dense(CONTEXT * WIDTH, WIDTH),
        "gate": dense(WIDTH, experts),
        "up": dense(experts, WIDTH, HIDDEN),
        "down": dense(experts, HIDDEN, WIDTH),
        "head": dense(WIDTH, 256),
    }


EXPERTS_APART = {name: P() for name in ("embedding", "mix", "gate", "head")}
EXPERTS_APART |= {name: P("expert") for name in ("up", "down")}


def apply_expert(x, up, down):
    return jax.nn.gelu(x @ up) @ down


def dense_experts(params, x, expert):
    up, down = (jax.lax.all_gather(params[name], "expert", tiled=True) for name in ("up", "down"))
    every = jax.vmap(apply_expert, in_axes=(None, 0, 0))(x, up, down)
    return jnp.einsum("etw,te->tw", every, jax.nn.one_hot(expert, len(up)))


def ragged_experts(params, x, expert):
    exchange = partial(jax.lax.all_to_all, axis_name="expert", split_axis=0, concat_axis=0)
    send_sizes = jnp.bincount(expert, length=jax.lax.axis_size("expert"))
    recv_sizes = exchange(send_sizes, tiled=True)
    send_starts = jnp.cumsum(send_sizes) - send_sizes
    recv_starts = jnp.cumsum(recv_sizes) - recv_sizes

    order = jnp.argsort(expert)
    # Room for the tokens of all devices: the router may send them all here.
    room = jnp.zeros((len(send_sizes) * len(x), WIDTH), x.dtype)
    room = jax.lax.pcast(room, "expert", to="varying")
    received = jax.lax.ragged_all_to_all(
        x[order],
        room,
        input_offsets=send_starts,
        send_sizes=send_sizes,
        output_offsets=exchange(recv_starts, tiled=True),
        recv_sizes=recv_sizes,
        axis_name="expert",
    )
    returned = jax.lax.ragged_all_to_all(
        apply_expert(received, params["up"][0], params["down"][0]),
        jnp.zeros_like(x),
        input_offsets=recv_starts,
        send_sizes=recv_sizes,
        output_offsets=exchange(send_starts, tiled=True),
        recv_sizes=send_sizes,
        axis_name="expert",
    )
    return jnp.zeros_like(x).at[order].set(returned)


def forward(params, text, experts_of):
    """The mean loss over all devices' tokens, and how many tokens each expert got."""
    embedded = params["embedding"][text[:, :-1]].reshape(len(text), -1)
    x = jnp.tanh(embedded @ params["mix"])
    probabilities = jax.nn.softmax(x @ params["gate"])
    expert = jnp.argmax(probabilities, axis=-1)
    weight = jnp.take_along_axis(probabilities, expert[:, None], axis=-1)
    x = x + weight * experts_of(params, x, expert)
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ params["head"], text[:, -1])
    # Keeps the router from sending everything to one expert.
    share = jax.lax.pmean(jax.nn.one_hot(expert, probabilities.shape[-1]).mean(0), "expert")
    balance = probabilities.shape[-1] * (share * probabilities.mean(0)).sum()
    counts = jax.lax.psum(jnp.bincount(expert, length=probabilities.shape[-1]), "expert")
    return jax.lax.pmean(losses.mean() + 0.1 * balance, "expert"), counts


def main():
    experts_of = dense_experts if "--dense" in sys.argv[1:] else ragged_experts
    mesh = jax.make_mesh((jax.device_count(),), ("expert",))
    placements = {name: NamedSharding(mesh, spec) for name, spec in EXPERTS_APART.items()}
    params = jax.device_put(init(jax.random.key(0), mesh.size), placements)
    optimizer = optax.adam(1e-2)
    loss = jax.shard_map(
        partial(forward, experts_of=experts_of),
        mesh=mesh,
        in_specs=(EXPERTS_APART, P("expert")),
        out_specs=(P(), P()),
    )

    @partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, state, text):
        (value, counts), gradient = jax.value_and_grad(loss, has_aux=True)(params, text)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value, counts

    text = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int32)
    starts = np.random.default_rng(0).integers(0, len(text) - CONTEXT, (STEPS, mesh.size * TOKENS))
    batches = text[starts[..., None] + np.arange(CONTEXT + 1)]

    state = optimizer.init(params)
    apart = NamedSharding(mesh, P("expert"))
    for number, batch in enumerate(batches, start=1):
        batch = jax.device_put(batch, apart)
        params, state, value, counts = train_step(params, state, batch)
        print(f"step {number:2d}  loss {value:.5f}")
    print(f"tokens of each expert in the last step: {' '.join(map(str, counts))}")


if __name__ == "__main__":
    main()
