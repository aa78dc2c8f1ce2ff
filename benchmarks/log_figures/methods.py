"""Steps that are more than a network and a loss: agents, flows, equations, graphs, inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.log_figures.common import (
    RATE,
    Program,
    cross_entropy,
    floats,
    integers,
    key,
    shapes,
    supervised,
    trained,
)


def optax_multisteps() -> Program:
    """A perceptron whose gradients optax.MultiSteps accumulates over four steps."""
    from flax import linen

    layers: list[Any] = []
    for _ in range(4):
        layers += [linen.Dense(256), linen.gelu]
    model = linen.Sequential([*layers, linen.Dense(8)])
    return supervised(
        model, floats(512, 64), optax.MultiSteps(optax.adam(RATE), every_k_schedule=4)
    )


def optax_adversarial() -> Program:
    """A perceptron trained on inputs that three steps uphill have made worse, by optax's Lion."""
    weights = [floats(64, 256) for _ in range(4)]

    def clean(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = x + jax.nn.gelu(x @ each) @ each.T
        return jnp.square(x).mean()

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        def uphill(_: Any, change: jax.Array) -> jax.Array:
            upward = jnp.sign(jax.grad(clean, 1)(weights, x + change))
            return jnp.clip(change + 0.01 * upward, -0.03, 0.03)

        change = jax.lax.fori_loop(0, 3, uphill, jnp.zeros_like(x))
        return clean(weights, x + jax.lax.stop_gradient(change))

    return trained(loss, weights, optax.lion(RATE), floats(256, 64))


def brax_ppo() -> Program:
    """An update of brax's PPO: its networks, its generalized advantages, its loss."""
    from brax.training import types
    from brax.training.acme import running_statistics, specs
    from brax.training.agents.ppo import losses, networks

    batch, unrolled, observed, actions = 64, 20, 87, 8
    network = networks.make_ppo_networks(
        observed, actions, running_statistics.normalize, (128,) * 4, (256,) * 4
    )

    def make() -> Any:
        return losses.PPONetworkParams(
            policy=network.policy_network.init(jax.random.key(0)),
            value=network.value_network.init(jax.random.key(1)),
        )

    def loss(parameters: Any, statistics: Any, data: Any, key: jax.Array) -> jax.Array:
        value, _ = losses.compute_ppo_loss(parameters, statistics, data, key, network)
        return value

    shape = (batch, unrolled)
    data = types.Transition(
        observation=floats(*shape, observed),
        action=floats(*shape, actions),
        reward=floats(*shape),
        discount=floats(*shape),
        next_observation=floats(*shape, observed),
        extras={
            "state_extras": {"truncation": floats(*shape)},
            "policy_extras": {
                "raw_action": floats(*shape, actions),
                "log_prob": floats(*shape),
                "distribution_params": floats(*shape, 2 * actions),
            },
        },
    )
    statistics = jax.eval_shape(
        lambda: running_statistics.init_state(specs.Array((observed,), jnp.dtype("float32")))
    )
    return trained(loss, jax.eval_shape(make), optax.adam(RATE), statistics, data, key())


def flowjax() -> Program:
    """The likelihood of a masked autoregressive flow of 6 layers in 16 dimensions."""
    import equinox as eqx
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow
    from paramax import unwrap

    def make() -> Any:
        return masked_autoregressive_flow(
            jax.random.key(0), base_dist=Normal(jnp.zeros(16)), flow_layers=6, nn_width=128
        )

    parameters, static = eqx.partition(make(), eqx.is_inexact_array)

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        return -unwrap(eqx.combine(parameters, static)).log_prob(x).mean()

    return trained(loss, shapes(parameters), optax.adam(RATE), floats(512, 16))


def diffrax() -> Program:
    """A neural differential equation of 32 steps by Heun's method, for a batch of curves."""
    import diffrax as dfx
    import equinox as eqx

    abstract = eqx.filter_eval_shape(
        lambda: eqx.nn.MLP(8, 8, 128, 2, jax.nn.softplus, key=jax.random.key(0))
    )
    parameters, static = eqx.partition(abstract, lambda leaf: hasattr(leaf, "shape"))
    times = jnp.linspace(0.0, 1.0, 9)

    def loss(parameters: Any, curves: jax.Array) -> jax.Array:
        field = eqx.combine(parameters, static)

        def solved(start: jax.Array) -> jax.Array:
            term = dfx.ODETerm(lambda _, y, __: field(y))
            saved = dfx.SaveAt(ts=times)
            return dfx.diffeqsolve(term, dfx.Heun(), 0.0, 1.0, 1 / 32, start, saveat=saved).ys

        return jnp.square(jax.vmap(solved)(curves[:, 0]) - curves).mean()

    return trained(loss, parameters, optax.adam(RATE), floats(256, 9, 8))


def jraph() -> Program:
    """Four rounds of messages over one graph of 512 nodes and 4096 edges."""
    import haiku as hk
    import jraph as jr

    nodes, edges, width = 512, 4096, 64

    def forward(graph: Any) -> jax.Array:
        def update() -> Callable[..., jax.Array]:
            network = hk.nets.MLP((128, width))
            return lambda *inputs: network(jnp.concatenate(inputs[:3], -1))

        for _ in range(4):
            graph = jr.GraphNetwork(update(), update())(graph)
        return hk.Linear(8)(graph.nodes)

    model = hk.without_apply_rng(hk.transform(forward))
    graph = jr.GraphsTuple(
        floats(nodes, width), floats(edges, width), integers(edges), integers(edges),
        None, integers(1), integers(1),
    )  # fmt: skip
    parameters = jax.eval_shape(model.init, jax.random.key(0), graph)

    def loss(parameters: Any, graph: Any, labels: jax.Array) -> jax.Array:
        return cross_entropy(model.apply(parameters, graph), labels)

    return trained(loss, parameters, optax.adam(RATE), graph, integers(nodes))


def numpyro() -> Program:
    """A step of stochastic variational inference: a variational autoencoder."""
    import numpyro as npr
    from flax import linen
    from numpyro import distributions as dist
    from numpyro.contrib.module import flax_module
    from numpyro.infer import SVI, Trace_ELBO

    hidden, pixels = 32, 784
    encoder = linen.Sequential([linen.Dense(400), linen.softplus, linen.Dense(2 * hidden)])
    decoder = linen.Sequential([linen.Dense(400), linen.softplus, linen.Dense(pixels)])

    def model(x: jax.Array) -> None:
        decode = flax_module("decoder", decoder, input_shape=(1, hidden))
        with npr.plate("batch", x.shape[0]):
            z = npr.sample("z", dist.Normal(0.0, 1.0).expand([hidden]).to_event(1))
            npr.sample("x", dist.Bernoulli(logits=decode(z)).to_event(1), obs=x)

    def guide(x: jax.Array) -> None:
        encode = flax_module("encoder", encoder, input_shape=(1, pixels))
        mean, scale = jnp.split(encode(x), 2, -1)
        with npr.plate("batch", x.shape[0]):
            npr.sample("z", dist.Normal(mean, jnp.exp(scale)).to_event(1))

    inference = SVI(model, guide, npr.optim.Adam(RATE), Trace_ELBO())
    images = floats(256, pixels)
    state = jax.eval_shape(inference.init, jax.random.PRNGKey(0), images)
    return inference.update, (state, images)


def rlax() -> Program:
    """Double Q-learning of a recurrent network over unrolled steps, with Haiku."""
    import haiku as hk
    import rlax as rl

    time, batch, actions = 40, 32, 6

    def forward(frames: jax.Array) -> jax.Array:
        x = hk.BatchApply(hk.nets.MLP((256, 256)))(frames)
        core = hk.LSTM(256)
        x, _ = hk.dynamic_unroll(core, x, core.initial_state(frames.shape[1]))
        return hk.BatchApply(hk.nets.MLP((256, actions)))(x)

    model = hk.without_apply_rng(hk.transform(forward))
    frames = floats(time, batch, 64)
    parameters = jax.eval_shape(model.init, jax.random.key(0), frames)

    def loss(parameters: Any, target: Any, frames: jax.Array, taken: Any, reward: Any) -> jax.Array:
        values, best = model.apply(parameters, frames), model.apply(target, frames)
        discount = jnp.full(reward.shape, 0.99)
        learn = jax.vmap(jax.vmap(rl.double_q_learning))
        errors = learn(values[:-1], taken, reward, discount, best[1:], values[1:])
        return rl.l2_loss(errors).mean()

    taken, reward = integers(time - 1, batch), floats(time - 1, batch)
    return trained(loss, parameters, optax.rmsprop(RATE), parameters, frames, taken, reward)
