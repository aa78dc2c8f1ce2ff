"""`cse` where text does not show it: its plan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from support.programs import normal

from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import facts_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module


def sine_twice(x: jax.Array) -> jax.Array:
    return jax.lax.sin(x) * jax.lax.sin(x) + x @ x + x @ x


def test_the_plan_counts_what_is_merged_and_leaves_products_alone() -> None:
    module = clone_module(jax.jit(sine_twice).lower(normal(4, 4)).compiler_ir())
    run = Pipeline.parse("cse").run(module, target=Target()).runs[-1]
    assert facts_of(run.plan) == {"duplicate operations merged": 1}
    assert run.summary == "1 duplicate operation merged"
    names = [op.name for op in walk.operations(module.operation)]
    assert names.count("stablehlo.sine") == 1
    assert names.count("stablehlo.dot_general") == 2


def two_directions(x: jax.Array) -> jax.Array:
    """Of two loops that are concatenated the loss reads one."""

    def steps(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, row: (jnp.sin(c + row),) * 2, x[0], x)[1]

    both = jnp.concatenate([steps(x), steps(x[::-1])], 1)
    return jnp.square(both[:, :64]).sum()


def test_the_loops_of_two_directions_do_not_wait_for_each_other() -> None:
    """XLA reads one operand of a concatenation, and so does the model after `cse`."""
    step = jax.jit(jax.value_and_grad(two_directions))
    module = clone_module(step.lower(normal(64, 64)).compiler_ir())
    Pipeline.parse("inline").run(module, target=Target())
    before = predict(module).temp_bytes
    run = Pipeline.parse("cse").run(module, target=Target()).runs[-1]
    assert facts_of(run.plan)["slices read from one operand"]
    after = predict(module).temp_bytes
    assert after < 0.9 * before, (after, before)
