"""What `accumulate` holds through its loops: sums, of which types, and what parameters give."""

from __future__ import annotations

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

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk


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
