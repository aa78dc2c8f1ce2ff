"""`accumulate` of recurrent layers, and of gradients of each example."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.flows.accumulated import assert_same
from support.flows.runs import lowered
from support.flows.steps import normal

from hloom.passes.accumulate.batch import NoStepError, choose
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

STEPS, BATCH, INPUTS, UNITS, CLASSES = 6, 8, 12, 16, 4

READS = {
    "old state": lambda old, new, out: jnp.tanh(old),
    "new state": lambda old, new, out: jnp.tanh(new),
    "old state itself": lambda old, new, out: old,
    "product of the old state": lambda old, new, out: jnp.tanh(old) @ out,
}
"""What a leaky unit gives at each time."""


def leaky(read: Any) -> Any:
    def forward(weights: Any, x: Any) -> Any:
        def body(state: Any, given: Any) -> Any:
            new = 0.9 * state + given @ weights["in"]
            return new, read(state, new, weights["out"])

        return jax.lax.scan(body, jnp.zeros((x.shape[1], UNITS)), x)[1]

    return forward


def leaky_weights() -> Any:
    return {"in": normal(INPUTS, UNITS), "out": normal(UNITS, CLASSES, seed=1)}


def trained(loss: Any) -> Any:
    def step(weights: Any, *data: Any) -> Any:
        gradients = jax.grad(loss)(weights, *data)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return step


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_unit_may_give_its_state_before_the_input(read: Any) -> None:
    forward = leaky(read)
    step = trained(lambda weights, x: jnp.mean(forward(weights, x) ** 2))
    x = normal(STEPS, BATCH, INPUTS, seed=2)
    assert_same(step, leaky_weights(), x, spec="accumulate{microbatches=4}", tolerance=1e-6)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_units_that_are_only_run_are_no_step(read: Any) -> None:
    """Though they give as much as they are given, and of the shape of an argument."""
    forward = leaky(read)

    def run(weights: Any, x: Any) -> Any:
        made = forward(weights, x)
        return jnp.concatenate([made, made], -1)[..., :INPUTS] + x[..., :1]

    with pytest.raises(NoStepError):
        choose(Program.of(lowered(run, leaky_weights(), normal(STEPS, BATCH, INPUTS))), None, 1)


@jax.custom_jvp
def spike(x: Any) -> Any:
    return (x > 0).astype(x.dtype)


@spike.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """A surrogate, as the derivative of a step is none."""
    (x,), (tangent,) = primals, tangents
    return spike(x), tangent / (1 + 10 * jnp.abs(x)) ** 2


def neurons(weights: Any, x: Any) -> Any:
    """Leaky integrate-and-fire layers, which are reset by subtraction, and an integrator."""

    def body(states: Any, given: Any) -> Any:
        new = []
        for layer, state in zip(weights["layers"], states[:-1], strict=True):
            fired = spike(state - 1.0)
            new.append(0.9 * state + given @ layer - fired)
            given = fired
        new.append(0.8 * states[-1] + given @ weights["out"])
        return new, states[-1]

    sizes = [*(layer.shape[1] for layer in weights["layers"]), CLASSES]
    states = [jnp.zeros((x.shape[1], size)) for size in sizes]
    return jax.lax.scan(body, states, x)[1]


def test_layers_of_neurons_that_spike() -> None:
    sizes = [INPUTS, UNITS, UNITS, UNITS]
    weights = {
        "layers": [
            2 * normal(*pair, seed=3 + n) for n, pair in enumerate(itertools.pairwise(sizes))
        ],
        "out": normal(UNITS, CLASSES, seed=9),
    }

    def loss(weights: Any, x: Any, labels: Any) -> Any:
        summed = neurons(weights, x).sum(0)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(summed), labels[:, None], 1)
        return -chosen.mean()

    labels = jnp.arange(BATCH) % CLASSES
    x = jnp.abs(normal(2 * STEPS, BATCH, INPUTS, seed=2)) * 4
    gradients = jax.tree.leaves(jax.grad(loss)(weights, x, labels))
    assert all(float(jnp.abs(each).max()) > 1e-4 for each in gradients)
    spec = "accumulate{microbatches=4}"
    assert_same(trained(loss), weights, x, labels, spec=spec, tolerance=1e-6)


SUMS = {
    "sum": lambda gradient, factor: (gradient * factor[:, None, None]).sum(0),
    "einsum": lambda gradient, factor: jnp.einsum("bij,b->ij", gradient, factor),
    "tensordot": lambda gradient, factor: jnp.tensordot(factor, gradient, 1),
    "mean": lambda gradient, factor: (gradient * factor[:, None, None]).mean(0) * BATCH,
}


def unrolled(weights: Any, x: Any) -> Any:
    for w in weights:
        x = jax.nn.gelu(x @ w)
    return x


def scanned(weights: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jax.nn.gelu(x @ w), None), x, jnp.stack(weights))[0]


@pytest.mark.parametrize("forward", [unrolled, scanned])
@pytest.mark.parametrize("summed", SUMS.values(), ids=SUMS)
def test_gradients_of_each_example_are_clipped_and_summed(summed: Any, forward: Any) -> None:
    def loss(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean((forward(weights, x) - y) ** 2)

    def step(weights: Any, x: Any, y: Any) -> Any:
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, x, y)
        norms = jnp.sqrt(sum(jnp.sum(each * each, (1, 2)) for each in gradients))
        factor = jnp.minimum(1.0, 1.0 / norms)
        return [
            w - 0.1 * summed(g, factor) / BATCH for w, g in zip(weights, gradients, strict=True)
        ]

    weights = [normal(UNITS, UNITS, seed=seed) for seed in range(3)]
    x, y = normal(BATCH, UNITS, seed=5), normal(BATCH, UNITS, seed=6)
    assert_same(step, weights, x, y, spec="accumulate{microbatches=4}", tolerance=1e-6)


def test_why_the_batch_stays_whole_is_told() -> None:
    forward = leaky(READS["new state"])
    step = trained(lambda weights, x: jnp.mean(forward(weights, x) ** 2))
    module = lowered(step, leaky_weights(), normal(STEPS, BATCH, INPUTS, seed=2))

    def said(spec: str, target: Target) -> str:
        return Pipeline.parse(spec).run(clone_module(module), target=target).runs[-1].summary

    device = Target("cpu", memory_bytes=2**30, usable_bytes=2**30)
    why = "how many? The whole batch holds the budget; accumulate{microbatches=8} divides it"
    assert why in said("accumulate", device)
    assert "give microbatches= or a budget=" in said("accumulate", Target("cpu"))
    named = Pipeline.parse("accumulate{microbatches=2 args=nope}")
    refusal = named.run(clone_module(module), target=device).runs[-1].refusal
    assert refusal.startswith("It has no argument 'nope'. There are ")
    assert refusal.endswith(".")
    assert not refusal.endswith("..")
