"""Passes on every way to write a loss: the same loss and gradients, or it is left with a reason.

Loops over a dimension, and what other passes make of them: the results stay the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.flows.runs import compiled, evaluated
from support.flows.steps import STEPS, FlowStep
from support.losses import LOSSES, SMALL

from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module

WHOLE = {
    "angular_margin": "it leaves a loop of this plan",
    "checkpointed_loop": "it takes 3 loops",
    "head_of_each_layer": "has code of its own",
    "perplexity": "it takes 2 loops",
    "preferences": "it takes 2 loops",
    "user_loop": "has code of its own",
}
"""The ways that `chunk` leaves, with what is read in full."""

WITHOUT_LABELS_AS_INDICES = {
    "binary",
    "one_hot_einsum",
    "optax_one_hot",
    "own_derivative",
    "smoothed_labels",
}
"""They make a one-hot of the labels themselves."""


def in_chunks(name: str, run: Any) -> None:
    assert run.empty == (name in WHOLE)
    assert WHOLE.get(name, "") in str(run.plan)


def by_one_hot(name: str, run: Any) -> None:
    assert run.empty == (name in WITHOUT_LABELS_AS_INDICES)


SPECS: dict[str, tuple[float, Callable[[str, Any], None]]] = {
    "chunk{chunks=2 min_bytes=0}": (1e-6, in_chunks),
    "one-hot": (0.0, by_one_hot),
}
"""How far results may be, relative to the largest element, and what the pass did."""


@functools.cache
def known(name: str) -> tuple[ir.Module, list[Any], list[np.ndarray]]:
    """A loss with its gradients, its arguments, and what the interpreter gives."""
    loss = LOSSES[name]
    arguments = loss.arguments(SMALL)
    module = jax.jit(loss.step, keep_unused=True).lower(*arguments).compiler_ir()
    leaves = jax.tree.leaves(arguments)
    return module, leaves, evaluated(module, leaves)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("spec", SPECS)
def test_a_loss_and_its_gradients_stay_the_same(name: str, spec: str) -> None:
    module, leaves, wanted = known(name)
    changed = clone_module(module)
    run = Pipeline.parse(spec).run(changed, target=Target()).runs[-1]
    tolerance, did = SPECS[spec]
    did(name, run)
    for got, value in zip(evaluated(changed, leaves), wanted, strict=True):
        np.testing.assert_allclose(
            got, value, rtol=0, atol=tolerance * max(np.abs(value).max(), 1e-6)
        )


COMPOSED = (
    "accumulate{microbatches=2},remat",
    "accumulate{microbatches=3},chunk{chunks=2 min_bytes=0},remat{budget=50%}",
    "one-hot{reads=select},chunk{chunks=2 min_bytes=0},remat{budget=min},barriers,capture",
)


def passed(module: ir.Module, spec: str) -> tuple[ir.Module, PipelineResult]:
    clone = clone_module(module)
    result = Pipeline.parse(spec).run(clone, target=Target(platform="cuda"))
    return clone, result


@pytest.mark.parametrize("spec", COMPOSED)
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
