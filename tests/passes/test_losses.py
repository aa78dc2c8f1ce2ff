"""Passes on every way to write a loss: the same loss and gradients, or it is left with a reason."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.flows.runs import evaluated
from support.losses import LOSSES, SMALL

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
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
