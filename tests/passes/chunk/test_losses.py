"""`chunk` on every way to write a loss: the same loss and gradients, in chunks or with a reason."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
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
"""The ways that are left, with what is read in full."""


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradients_stay_the_same(name: str) -> None:
    loss = LOSSES[name]
    arguments = loss.arguments(SMALL)
    module = jax.jit(loss.step, keep_unused=True).lower(*arguments).compiler_ir()
    changed = clone_module(module)
    run = Pipeline.parse("chunk{chunks=2 min_bytes=0}").run(changed, target=Target()).runs[-1]
    plan: dict[str, Any] = run.plan
    if name in WHOLE:
        assert not plan["regions"]
        assert WHOLE[name] in str(plan["left"])
    else:
        assert plan["regions"]
    leaves = jax.tree.leaves(arguments)
    for got, wanted in zip(evaluated(changed, leaves), evaluated(module, leaves), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6 * max(np.abs(wanted).max(), 1e-6))
