"""What a frontier promises is what plans give: one for any budget is as fast as each point that
takes less, whatever was asked before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.modules import module_after
from support.programs.chains import scanned, unrolled

from hloom import targets
from hloom.passes.framework.options import Budget
from hloom.passes.framework.target import Target
from hloom.passes.planner.frontier import FrontierAnalysis
from hloom.passes.planner.loop import CAUTION

GPU, TPU = Target("cuda", "gpu"), targets.load("v5p")


def two_levels(w: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.sin(scanned(w, x) + x), jnp.mean(x)), x, w)[1].mean()


def recurrent(w: Any, x: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        i, f, g, o = jnp.split(jnp.concatenate([x, state[0]], -1) @ w, 4, -1)
        cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), jnp.sin(cell)

    return (jax.lax.scan(step, (x[0], x[0]), x)[1] ** 2).mean()


@pytest.mark.parametrize(
    ("loss", "shapes", "target"),
    [
        (scanned, [(16, 64, 64), (512, 64)], GPU),
        (recurrent, [(128, 256), (32, 128, 64)], GPU),
        (unrolled, [(16, 64, 64), (512, 64)], GPU),
        (two_levels, [(4, 6, 64, 64), (512, 64)], TPU),
    ],
)
def test_a_plan_for_any_budget_is_as_fast_as_the_points_that_hold_it(
    loss: Callable[..., Any], shapes: list[tuple[int, ...]], target: Target
) -> None:
    lowered = jax.jit(jax.grad(loss)).lower(*(jax.ShapeDtypeStruct(s, "float32") for s in shapes))
    module = module_after(lowered, target=target)
    with module.context, ir.Location.unknown():
        analysis = FrontierAnalysis(module, target, 0)
        points = analysis.along(8)
        least, most = analysis.floor.step_bytes, analysis.unmodified.step_bytes
        rng = random.Random(0)
        sizes = [int(rng.uniform(least / min(CAUTION), most)) for _ in range(3)]
        for budget in [*(Budget(size_bytes=each) for each in sizes), *(p.budget for p in points)]:
            if budget is None or budget.least:
                continue
            reached = analysis.at(budget)
            alone = FrontierAnalysis(module, target, 0).at(budget)
            assert reached is not None
            assert alone is not None
            assert reached.holds
            assert reached.limit_bytes is not None
            assert reached.added_seconds == alone.added_seconds
            room = reached.limit_bytes * min(CAUTION)
            promised = min(one.added_seconds for one in points if one.temp_bytes <= room)
            assert reached.added_seconds <= promised + 0.001 * analysis.step_seconds
