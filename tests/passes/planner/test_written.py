"""Plans of least memory for loops that stand one behind the other: tried, and checked."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir

from hloom import targets
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.candidates import Candidate, PlannerSettings
from hloom.passes.planner.comparison import least
from hloom.passes.planner.moves import DEFAULT_MOVES
from hloom.passes.planner.record import Estimate, Measurement
from hloom.passes.planner.search import Search
from hloom.passes.planner.variants import Variants, moves_of

TARGET = targets.load("h100_sxm")


def blocks(rate: jax.Array, x: jax.Array) -> jax.Array:
    def advance(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        first = jnp.sin(rate * x)
        return x + first + jnp.cos(rate * first), None

    for _ in range(3):
        x = jax.lax.scan(advance, x, None, 64)[0]
    return x.sum()


@functools.cache
def searched() -> tuple[ir.Module, Variants, Search, dict[str, Estimate]]:
    """The program, and by moves the plan that takes least."""
    lowered = jax.jit(jax.grad(blocks)).lower(jnp.zeros(()), jnp.zeros((300, 100)))
    module = clone_module(lowered.compiler_ir())
    Pipeline.parse("inline,drop-constraints,cse,free-constants").run(module, target=TARGET)
    with module.context, ir.Location.unknown():
        variants = Variants(module, TARGET, PlannerSettings(moves=DEFAULT_MOVES))
        search = Search(variants, DEFAULT_MOVES)
        found = sorted(search.lowest(), key=lambda each: -each.temp_bytes)
    return module, variants, search, {moves_of(each): each for each in found}


def test_segments_of_one_level_with_all_residuals_are_tried() -> None:
    """The module that is asked about the loops may be the same: it is a trial then."""
    *_, found = searched()
    assert {"recursive-checkpoint", "recursive-checkpoint{levels=1}"} & found.keys()


def test_an_estimate_as_written_has_the_memory_of_the_text() -> None:
    module, variants, search, found = searched()
    moves = "recursive-checkpoint{levels=1 residuals=0.25}"
    with module.context, ir.Location.unknown():
        before = found[moves]
        after = search.as_written(before)
        text = variants.made_by(before.candidate).written(before.candidate)
        assert after.temp_bytes == predict(text, rules=memory_rules(TARGET)).temp_bytes
        assert after.temp_bytes > 1.1 * before.temp_bytes
        assert search.estimate(before.candidate) == after
        assert search.as_written(found[""]).temp_bytes == found[""].temp_bytes


def test_of_like_memory_the_plan_that_unlike_the_compiled_one_recomputes_nothing() -> None:
    """XLA's figure of a plan that recomputes says little of moves alone."""
    again, others = Candidate(0, 0, moves="offload"), Candidate(0, 0, moves="chunk")
    alone = Candidate.of_moves("chunk")
    tried = [Measurement(Estimate(again, 100, 1.0), 100)]
    assert least([Estimate(others, 90, 1.0), Estimate(alone, 90, 1.0)], tried).candidate == alone
