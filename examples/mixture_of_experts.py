"""Trains a mixture of experts, a few of them on each device, on this file's text.

    export XLA_FLAGS=--xla_force_host_platform_device_count=8       (on a CPU)
    JAX_HLOOM=barriers,ragged python examples/mixture_of_experts.py
    python examples/mixture_of_experts.py --dense

Each token goes to the device of its expert and back by `jax.lax.ragged_all_to_all`, and there
through its expert by `jax.lax.ragged_dot`: no capacity, no padding on the way, no token dropped.
XLA has no such exchange for CPUs; hloom's kernel serves. It has no such product for CPUs and GPUs
either, and multiplies all tokens by the matrices of all experts; `ragged` does not. With --dense
every expert works on every token and a mask picks one: the same losses, more work. Prints the loss
as it falls, the tokens that each expert got in the last step, and the time that a step takes.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, HIDDEN, CONTEXT = 64, 256, 8
TOKENS, STEPS = 128, 20  # tokens: of one device


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


def dense_experts(params, x, expert):
    up, down = (jax.lax.all_gather(params[name], "expert", tiled=True) for name in ("up", "down"))
    hidden = jax.nn.gelu(jnp.einsum("tw,ewh->eth", x, up))
    every = jnp.einsum("eth,ehw->etw", hidden, down)
    return jnp.einsum("etw,te->tw", every, jax.nn.one_hot(expert, len(up)))


def grouped_experts(params, x, sent):
    """The tokens that a device got, each through its expert.

    `sent` says how many it got of each device for each of its experts, in the order of `x`. What is
    in `x` behind them is room.
    """
    devices, experts = sent.shape
    every = jnp.tile(jnp.arange(experts), devices)
    of_rows = jnp.repeat(every, sent.reshape(-1), total_repeat_length=len(x))
    of_rows = jnp.where(jnp.arange(len(x)) < sent.sum(), of_rows, experts)
    order = jnp.argsort(of_rows)
    sizes = sent.sum(0)
    hidden = jax.nn.gelu(jax.lax.ragged_dot(x[order], params["up"], sizes))
    return jnp.zeros_like(x).at[order].set(jax.lax.ragged_dot(hidden, params["down"], sizes))


def ragged_experts(params, x, expert):
    exchange = partial(jax.lax.all_to_all, axis_name="expert", split_axis=0, concat_axis=0)
    devices, experts = jax.lax.axis_size("expert"), len(params["up"])
    to_send = jnp.bincount(expert, length=devices * experts).reshape(devices, experts)
    to_receive = exchange(to_send, tiled=True)
    send_sizes, recv_sizes = to_send.sum(1), to_receive.sum(1)
    send_starts = jnp.cumsum(send_sizes) - send_sizes
    recv_starts = jnp.cumsum(recv_sizes) - recv_sizes

    order = jnp.argsort(expert)
    # Room for the tokens of all devices: the router may send them all here.
    room = jnp.zeros((devices * len(x), WIDTH), x.dtype)
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
        grouped_experts(params, received, to_receive),
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--experts", type=int, default=4, help="of each device")
    parser.add_argument("--dense", action="store_true", help="every expert on every token")
    options = parser.parse_args()
    experts_of = dense_experts if options.dense else ragged_experts
    mesh = jax.make_mesh((jax.device_count(),), ("expert",))
    placements = {name: NamedSharding(mesh, spec) for name, spec in EXPERTS_APART.items()}
    params = init(jax.random.key(0), options.experts * mesh.size)
    params = jax.device_put(params, placements)
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
    seconds = []
    for number, batch in enumerate(batches, start=1):
        batch = jax.device_put(batch, apart)
        start_s = time.perf_counter()
        params, state, value, counts = train_step(params, state, batch)
        print(f"step {number:2d}  loss {value:.5f}")
        seconds.append(time.perf_counter() - start_s)
    print(f"a step takes {np.median(seconds[1:]) * 1e3:.1f} ms")
    print(f"tokens of each expert in the last step: {' '.join(map(str, counts))}")


if __name__ == "__main__":
    main()
