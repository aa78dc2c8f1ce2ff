"""Loops over a dimension, and what other passes make of them: the results stay the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.flows.runs import compiled
from support.flows.steps import STEPS, FlowStep

from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module

SPECS = (
    "accumulate{microbatches=2},remat",
    "accumulate{microbatches=3},chunk{chunks=2 min_bytes=0},remat{budget=50%}",
    "one-hot{reads=select},chunk{chunks=2 min_bytes=0},remat{budget=min},barriers,capture",
)


def passed(module: ir.Module, spec: str) -> tuple[ir.Module, PipelineResult]:
    clone = clone_module(module)
    result = Pipeline.parse(spec).run(clone, target=Target(platform="cuda"))
    return clone, result


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_the_same(name: str, spec: str) -> None:
    case: FlowStep = STEPS[name]()
    module = jax.jit(case.step, keep_unused=True).lower(*case.arguments).compiler_ir()
    changed, _ = passed(module, spec)
    for one, other in zip(
        compiled(changed, case.leaves), compiled(module, case.leaves), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_a_scan_in_a_loop_reads_what_is_made_before_that() -> None:
    """Such a value is alive in the whole loop, whatever reads it behind."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        scale = jnp.sort(w)  # what less data gives would be made in the loop

        def loss(w: jax.Array) -> jax.Array:
            def layer(h: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
                h = h @ w
                return jnp.sin(h + row) * jnp.tanh(h - row), None

            return jax.lax.scan(layer, x, scale)[0].sum()

        return jax.grad(loss)(w) + scale

    w, x = np.eye(8, dtype=np.float32), np.ones((6, 8), np.float32)
    module = jax.jit(step).lower(w, x).compiler_ir()
    changed, result = passed(module, "accumulate{microbatches=3},remat{min_bytes=0}")
    assert [run.name for run in result.runs if run.requested and not run.empty] == [
        "accumulate",
        "remat",
    ]
    loops = [op for op in walk.operations(changed.operation) if op.name == "stablehlo.while"]
    assert len(loops) >= 3, "the microbatches, and a scan and its gradient in them"
    [one], [other] = compiled(changed, (w, x)), compiled(module, (w, x))
    np.testing.assert_allclose(one, other, rtol=1e-5)
