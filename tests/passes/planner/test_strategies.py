"""The strategies of the planner: their tables in decision 26, and what tells which found a plan."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from typing import Any

import jax
import pytest
from jax.extend.mlir import ir
from support import ROOT

from hloom import targets
from hloom.passes.fit import Fit
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.aim import Aim
from hloom.passes.planner.candidates import Candidate, PlannerSettings
from hloom.passes.planner.loop import CHOICES
from hloom.passes.planner.moves import DEFAULT_MOVES
from hloom.passes.planner.record import Estimate
from hloom.passes.planner.search import STRATEGIES, Search
from hloom.passes.planner.strategy import Choice, Strategy
from hloom.passes.planner.variants import Variants

PAGE = (ROOT / "docs" / "decisions" / "0026-moves-of-fit.md").read_text(encoding="utf-8")


@pytest.mark.once
def test_the_page_has_all_strategies_in_order_with_their_constants() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.search(r" [\d.e+]+ \|$", line)]
    told = [(row[0].removeprefix("| "), row[-1].removesuffix(" |")) for row in rows]
    strategies: list[Strategy[..., Any]] = [each for _, turn in STRATEGIES for each in turn]
    assert told == [
        (each.name, ", ".join(f"{what} {value:.4g}" for what, value in each.constants.items()))
        for each in [*strategies, *CHOICES]
    ]


def prepared(lowered: Any, target: Target) -> ir.Module:
    changed = clone_module(lowered.compiler_ir())
    Pipeline.parse("inline,drop-constraints,cse,free-constants").run(changed, target=target)
    return changed


@pytest.mark.once
def test_the_page_shows_how_a_plan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of the example, planned for an H100; nothing of it is compiled or run."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example, target = importlib.import_module("gpt_train"), targets.load("h100_sxm")
    step = example.TrainStep(example.ModelSizes(), seed=0)
    module = prepared(step.lower(), target)
    with module.context, ir.Location.unknown():
        plan = Fit(budget=Budget(size_bytes=120 * 2**20)).plan_after(module, target, ())
    [shown] = re.findall(r"^```text\n(hloom: jit_step: plan 1: .*?)^```$", PAGE, re.M | re.S)
    assert shown.splitlines() == [f"hloom: jit_step: plan 1: {one}" for one in plan.record.found]


def test_a_compiled_plan_whose_moves_are_left_out_by_now_may_be_chosen_again() -> None:
    """As where undone checkpoints miss every budget, and still took least."""
    undone = Estimate(Candidate.of_moves("undo-checkpoint"), 1024, 0.0)
    choice = Choice(undone, 1024, (), {}, Aim(512), "again")
    assert choice.lines == (
        "chosen again: earlier attempts after undo-checkpoint, 1.00 KiB, +0 ms",
    )


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(3):
        x = x + jax.numpy.tanh(x @ w) @ w
    return (x**2).mean()


@functools.cache
def lowered() -> ir.Module:
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 64), (512, 64))]
    return prepared(jax.jit(jax.grad(loss)).lower(*shapes), Target())


def test_each_estimate_is_of_the_whole_plan_and_has_a_strategy() -> None:
    module = lowered()
    with module.context, ir.Location.unknown():
        variants = Variants(module, Target(), PlannerSettings(moves=DEFAULT_MOVES))
        first = Search(variants, DEFAULT_MOVES)
        first.within(Aim(variants.base.whole.temp_bytes // 2))
        names = {each.name for _, turn in STRATEGIES for each in turn}
        assert first.found_by.keys() == first.estimates.keys()
        assert set(first.found_by.values()) <= {*names, "as it is"}
        assert "evictions" in first.found_by.values()
        again = Search(variants, DEFAULT_MOVES, first.estimates.values())
        assert set(again.found_by.values()) == {"earlier attempts"}
        again.lowest()
        assert "least memory" in again.found_by.values()
        for candidate, estimate in again.estimates.items():
            variant = variants.made_by(candidate)
            assert variant.model.estimate(candidate) == estimate
            assert estimate.seconds >= variant.added_seconds or not variant.moves


def test_the_first_plan_of_a_share_says_what_it_is_for() -> None:
    module, step = lowered(), Fit(budget=Budget(percent=50.0))
    with module.context, ir.Location.unknown():
        first = step.plan_after(module, Target(), ())
        *_, last = first.record.found
        assert last.startswith("chosen to measure what the budget is a share of: as it is, ")
        assert first.record.estimate is not None
        bytes_ = first.record.estimate.temp_bytes
        second = step.plan_after(module, Target(), [Attempt(first.record, bytes_, bytes_)])
    assert second.record.found[0].startswith("earlier attempts: 1 plan, none holds, the least is ")
    assert second.record.found[-1].startswith("chosen to hold the budget: ")
    assert dataclasses.replace(second.record, found=()) != second.record
