"""What rewritten loops change around them is what the memory model has for the rewritten module."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir

from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.candidates import EXPENSIVE_PRICES, PRICES, STEPS, Candidate
from hloom.passes.planner.model import Model
from hloom.passes.recompute.plan import RematPlan, apply_plan

ROWS, WIDTH, TABLES = 512, 64, 4


def loss_of_shifted_layers(w: jax.Array, x: jax.Array) -> jax.Array:
    """All layers add tables that are made once: to recompute a sum is to read its table again."""
    turned = jax.numpy.arange(float(ROWS))[:, None] * jax.numpy.arange(float(WIDTH))
    tables = [jax.numpy.sin(turned * each) for each in range(1, TABLES + 1)]

    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        for table in tables:
            x = jax.numpy.tanh(x @ w + table)
        return x, None

    return (jax.lax.scan(layer, x, length=8)[0] ** 2).mean()


def loss_of_microbatches(w: jax.Array, x: jax.Array) -> jax.Array:
    """The same in a loop around the scans."""

    def one(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
        loss, gradient = jax.value_and_grad(loss_of_shifted_layers)(w, part)
        return total + gradient * loss, None

    parts = jax.numpy.stack([x, x + 1, x + 2])
    return jax.lax.scan(one, w, parts)[0]


def gradient(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.grad(loss_of_shifted_layers)(w, x)


@pytest.mark.parametrize("step", [gradient, loss_of_microbatches])
def test_an_estimate_has_what_a_backward_loop_reads_to_recompute(
    step: Callable[[jax.Array, jax.Array], jax.Array],
) -> None:
    arguments = (np.ones((WIDTH, WIDTH), np.float32), np.ones((ROWS, WIDTH), np.float32))
    module = clone_module(jax.jit(step).lower(*arguments).compiler_ir())
    Pipeline.parse("inline,cse,free-constants").run(module, target=Target())
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        whole = least = model.estimate(None).temp_bytes
        for price_index in range(EXPENSIVE_PRICES):
            candidate = Candidate(0, price_index * STEPS)
            rewritten = clone_module(module)
            apply_plan(RematPlan(*model.on(rewritten, model.plan(candidate))))
            found = model.estimate(candidate).temp_bytes
            assert found == predict(rewritten).temp_bytes
            least = min(least, found)
        # Some plan recomputes sums, whose tables are there as long as the backward loop.
        assert least < whole


def test_a_forward_loop_of_which_everything_is_recomputed_has_no_effect() -> None:
    """The sum itself is not returned: nothing reads the forward loop where its stack is gone."""

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        def add(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + (row[0] * jax.numpy.sin(row[1])).sum(), None

        return jax.lax.scan(add, jax.numpy.zeros(()), (x, y))[0]

    rows = np.ones((8, ROWS, WIDTH), np.float32)
    module = clone_module(jax.jit(jax.grad(loss, (0, 1))).lower(rows, rows).compiler_ir())
    Pipeline.parse("inline,cse,free-constants").run(module, target=Target())
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        whole, least = (model.estimate(each) for each in (None, Candidate(0, 0)))
    assert least.temp_bytes <= whole.temp_bytes - rows.nbytes


def test_the_first_price_below_a_time_is_the_same_from_any_start() -> None:
    arguments = (np.ones((WIDTH, WIDTH), np.float32), np.ones((ROWS, WIDTH), np.float32))
    module = clone_module(jax.jit(gradient).lower(*arguments).compiler_ir())
    Pipeline.parse("inline,cse,free-constants").run(module, target=Target())
    with module.context, ir.Location.unknown():
        loops = Model(module, Target(), 0).loops
        seconds = [loops.seconds(price * STEPS) for price in range(PRICES)]
        assert min(seconds) < max(seconds)
        for most in {*seconds, 2 * max(seconds) + 1}:
            first = next((n for n, each in enumerate(seconds) if each < most), PRICES)
            for near in (None, 0, first, PRICES):
                assert loops.first_below(most, near) == first
