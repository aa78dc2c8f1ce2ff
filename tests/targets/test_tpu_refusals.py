"""Programs that XLA:TPU refuses, compiled for TPUs that are not here: needs the package libtpu."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

import hloom
from hloom._jax.out_of_memory import OutOfMemory, out_of_memory
from hloom.targets import deviceless

pytestmark = pytest.mark.tpu

GIB = 2**30


def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.sin(jnp.tanh(x @ w)), None

    return jnp.sum(jax.lax.scan(layer, x, weights)[0])


def lowered(target: str) -> jax.stages.Lowered:
    """About 28 GiB of residuals: more than a v5e has, and less than a v6e."""
    sharding = deviceless.placement(target)
    shapes = ((32, 1024, 1024), (65536, 1024))
    arguments = [jax.ShapeDtypeStruct(shape, "float32", sharding=sharding) for shape in shapes]
    return jax.jit(jax.grad(loss)).lower(*arguments)


@functools.cache
def refusal(target: str) -> OutOfMemory:
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        lowered(target).compile(compiler_options={"hloom": "off"})
    found = out_of_memory(raised.value)
    assert found is not None
    return found


def test_the_figure_of_a_refusal_is_that_of_the_step() -> None:
    refused = refusal("v5e")
    assert 15 * GIB < refused.limit_bytes < 16 * GIB
    figures = lowered("v6e").compile(compiler_options={"hloom": "off"}).memory_analysis()
    assert refused.used_bytes == pytest.approx(figures.peak_memory_in_bytes, rel=0.04)


def test_what_is_refused_as_it_is_compiles_to_a_budget() -> None:
    # The budget alone gives no reason to recompute anything: XLA's refusal does.
    compiled = lowered("v5e").compile(compiler_options={"hloom": "remat{budget=100GiB}"})
    assert compiled.memory_analysis() is not None
    record = hloom.records()[-1]
    first, *_ = record.attempts
    refused = refusal("v5e")
    assert (first.step_bytes, first.limit_bytes) == (refused.used_bytes, refused.limit_bytes)
    assert first.unmodified
    assert record.attempts[record.best_attempt or 0].refusal == ""
    assert record.changed
    assert record.step_bytes < refused.limit_bytes
    assert "(1 refused)" in record.headline
