"""What `accumulate` holds through its loops: sums, of which types, and what parameters give.

`accumulate` of recurrent layers, and of gradients of each example.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.flows.accumulated import assert_same
from support.flows.runs import lowered
from support.flows.steps import mlp, mlp_weights, normal

from hloom.passes.accumulate.batch import NoStepError, choose
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module


def bfloat16_step(weights: Any, x: Any) -> Any:
    return jax.grad(lambda w: (mlp(w, x).astype(jnp.float32) ** 2).mean())(weights)


@pytest.mark.parametrize(("dtype", "carried"), [("f32", "f32"), ("keep", "bf16")])
def test_what_gradients_are_accumulated_in(dtype: str, carried: str) -> None:
    weights, x = jax.tree.map(
        lambda leaf: leaf.astype(jnp.bfloat16), (mlp_weights(6, 8, 3), normal(8, 6))
    )
    module = lowered(bfloat16_step, weights, x)
    Pipeline.parse(f"accumulate{{microbatches=8 dtype={dtype}}}").run(module, target=Target())
    [loop] = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    sums = [ir.RankedTensorType(result.type) for result in loop.results]
    assert {str(sum_.element_type) for sum_ in sums if sum_.rank == 2} == {carried}


def test_float32_sums_are_nearer_to_the_truth() -> None:
    weights, x = mlp_weights(6, 8, 3), normal(64, 6)
    truth = (
        jax.jit(bfloat16_step)
        .lower(weights, x)
        .compile(compiler_options={"hloom": "off"})(weights, x)
    )
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (weights, x))

    def error(spec: str) -> float:
        got = (
            jax.jit(bfloat16_step).lower(*narrow).compile(compiler_options={"hloom": spec})(*narrow)
        )
        return sum(
            float(jnp.abs(one.astype(jnp.float32) - other).sum())
            for one, other in zip(got, truth, strict=True)
        )

    whole = error("off")
    assert error("accumulate{microbatches=64}") < 1.5 * whole
    assert error("accumulate{microbatches=64 dtype=keep}") > error("accumulate{microbatches=64}")


def in_float32(gradient: Any) -> Any:
    """What Adam's mean and its mean square are made of, converted once for each."""
    return 0.1 * gradient.astype(jnp.float32), jnp.square(gradient.astype(jnp.float32))


def in_its_own_type(gradient: Any) -> Any:
    return (0.1 * gradient).astype(jnp.float32), jnp.square(gradient).astype(jnp.float32)


@pytest.mark.parametrize("moments_of", [in_float32, in_its_own_type])
def test_a_gradient_that_is_read_twice_has_one_sum(moments_of: Callable[[Any], Any]) -> None:
    weights, x = jax.tree.map(
        lambda leaf: leaf.astype(jnp.bfloat16), (mlp_weights(6, 8, 3), normal(64, 6))
    )

    def step(weights: Any, x: Any) -> Any:
        return [moments_of(gradient) for gradient in bfloat16_step(weights, x)]

    module = lowered(step, weights, x)
    Pipeline.parse("accumulate{microbatches=8}").run(module, target=Target())
    [loop] = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    types = [ir.RankedTensorType(result.type) for result in loop.results]
    assert [str(type_.element_type) for type_ in types if type_.rank] == ["f32", "f32"]
    is_rounded = any(
        op.name == "stablehlo.convert" and op.operands[0] in list(loop.results)
        for op in walk.operations(module.operation)
    )
    assert is_rounded == (moments_of is in_its_own_type)
    assert_same(step, weights, x, spec="accumulate{microbatches=8}", tolerance=2e-2)


def mixed_precision_in_a_scan(weights: Any, x: Any) -> Any:
    """Flax's: parameters in float32, cast where they are used; the norm's too."""

    def layer(x: Any, weights: Any) -> tuple[Any, None]:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
        scaled = (normed * weights["scale"].astype(jnp.bfloat16)).astype(jnp.bfloat16)
        return x + jnp.tanh(scaled @ weights["kernel"].astype(jnp.bfloat16)), None

    def loss(weights: Any) -> Any:
        out, _ = jax.lax.scan(layer, x.astype(jnp.bfloat16), weights)
        return (out.astype(jnp.float32) ** 2).mean()

    return jax.value_and_grad(loss)(weights)


def test_mixed_precision_in_a_scan() -> None:
    """The scale's gradient is a float32 sum, rounded and widened again inside of the scan."""
    weights = {"scale": 1 + normal(3, 6), "kernel": normal(3, 6, 6, seed=1)}
    assert_same(mixed_precision_in_a_scan, weights, normal(8, 4, 6, seed=2), tolerance=1e-2)


def standardized(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        even = [(leaf - leaf.mean(0)) * jax.lax.rsqrt(leaf.var(0) + 1e-2) for leaf in weights]
        return (mlp(even, x) ** 2).mean()

    return jax.value_and_grad(loss)(weights)


def test_what_is_made_of_weights_is_not_held() -> None:
    """The loop reads means and scales, and weights that are as they were given."""
    arguments = mlp_weights(160, 160, 160), normal(8, 160)
    module = lowered(standardized, *arguments)
    Pipeline.parse("accumulate{microbatches=2}").run(module, target=Target())
    [loop] = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    inside = {walk.key(op) for op in walk.operations(loop)}
    held = [
        value
        for op in walk.operations(loop)
        for value in op.operands
        if isinstance(value.owner, ir.Operation | ir.OpView)
        and walk.key(value.owner.operation) not in inside
    ]
    assert {tuple(ir.RankedTensorType(value.type).shape) for value in held} == {(1, 160), (160,)}
    assert_same(standardized, *arguments)


def test_more_memory_is_told() -> None:
    """Sums of large weights take more than the activations of few examples did."""

    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(lambda weights: (mlp(weights, x) ** 2).mean())(weights)
        return [leaf - 0.1 * each for leaf, each in zip(weights, gradients, strict=True)]

    module = lowered(step, mlp_weights(1024, 1024, 1024), normal(4, 1024))
    told = "2 microbatches of 2, which take more memory than one by the model"
    plan = Pipeline.parse("accumulate{microbatches=2}").passes[0].plan(module, Target())
    assert plan.effect() == told  # type: ignore[attr-defined]
    assert re.search(r"by the model: [\d.]+ MiB of temporaries for [\d.]+ MiB$", plan.summary())
    assert Pipeline.parse("accumulate{budget=min}").passes[0].plan(module, Target()).empty


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
