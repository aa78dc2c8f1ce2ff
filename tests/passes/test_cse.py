"""`cse` where text does not show it: its plan."""

from __future__ import annotations

import jax
from support.programs import normal

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
