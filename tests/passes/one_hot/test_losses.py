"""`one-hot` on every way to write a loss: the same loss and the same gradients."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from support.flows.runs import evaluated
from support.losses import LOSSES, NARROW, SMALL

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

WITHOUT_LABELS_AS_INDICES = {
    "binary",
    "one_hot_einsum",
    "optax_one_hot",
    "own_derivative",
    "smoothed_labels",
}
"""They make a one-hot of the labels themselves."""


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradients_stay_the_same_to_the_bit(name: str) -> None:
    loss = LOSSES[name]
    arguments = loss.arguments(SMALL)
    module = jax.jit(loss.step, keep_unused=True).lower(*arguments).compiler_ir()
    changed = clone_module(module)
    run = Pipeline.parse("one-hot").run(changed, target=Target()).runs[-1]
    assert run.empty == (name in WITHOUT_LABELS_AS_INDICES)
    leaves = jax.tree.leaves(arguments)
    for got, wanted in zip(evaluated(changed, leaves), evaluated(module, leaves), strict=True):
        np.testing.assert_array_equal(got, wanted)


def distance(one: Any, other: Any) -> float:
    """The largest, of all arrays of a tree."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.float32(a) - np.float32(b)).max()) for a, b in pairs)


@pytest.mark.parametrize("name", ["flat_arange", "narrow"])
def test_xla_gives_no_other_result_in_bfloat16(name: str) -> None:
    loss = LOSSES[name]
    arguments = loss.arguments(NARROW)
    exact = jax.jit(loss.step)(*jax.tree.map(widened, arguments))
    before = jax.jit(loss.step)(*arguments)
    after = jax.jit(loss.step, compiler_options={"hloom": "one-hot"})(*arguments)
    assert distance(after, exact) <= distance(before, exact)


def widened(array: jax.Array) -> jax.Array:
    return array.astype("float32") if array.dtype == "bfloat16" else array
