"""`fit`: moves and recomputation for a budget, their results, and the plan taken apart.

The strategies of the planner: their tables in decision 26, and what tells which found a plan.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support import ROOT
from support.dumps.fit_dump import language_model
from support.modules import module_after
from support.remat_runs import assert_same

import hloom
from hloom import targets
from hloom.passes.fit import Fit
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.feedback import Attempt, record_in
from hloom.passes.framework.options import Budget, Bytes, Words
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.aim import Aim
from hloom.passes.planner.candidates import STEPS, Candidate, PlannerSettings
from hloom.passes.planner.loop import CHOICES
from hloom.passes.planner.moves import DEFAULT_MOVES, MOVES
from hloom.passes.planner.plan import MemoryPlan
from hloom.passes.planner.record import Estimate, RematRecord
from hloom.passes.planner.search import STRATEGIES, Search
from hloom.passes.planner.strategy import Choice, Strategy
from hloom.passes.planner.variants import Variants, moves_of
from hloom.passes.recompute.scan.plan import ScanPlan
from hloom.passes.remat import Remat

TARGET = Target(platform="cuda")

_TOKENS, _WIDTH, _WORDS = 512, 32, 1024


def unrolled(parameters: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """The same without a scan and without a loss over words."""
    x = parameters["embedding"][tokens]
    for w in [*parameters["layers"]] * 3:
        x = x + jnp.tanh(jnp.tanh(x @ w) @ w.T)
    return (x**2).mean()


def arguments() -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(0)
    parameters = {
        "embedding": rng.normal(size=(_WORDS, _WIDTH)).astype(np.float32) * 0.1,
        "layers": rng.normal(size=(6, _WIDTH, _WIDTH)).astype(np.float32) * 0.2,
    }
    return parameters, rng.integers(0, _WORDS, _TOKENS).astype(np.int32)


@functools.cache
def prepared(loss: Callable[..., jax.Array]) -> ir.Module:
    return module_after(jax.jit(jax.value_and_grad(loss)).lower(*arguments()), target=TARGET)


def planned(step: Fit | Remat, loss: Callable[..., jax.Array], share: float) -> Any:
    """The plan for a share of what the model says that the program takes."""
    module = prepared(loss)
    with module.context, ir.Location.unknown():
        planner = step.planner(module, TARGET)
        first = planner(module, ())
        taken = first.record.prediction
        assert taken is not None
        record = RematRecord(estimate=first.record.estimate)
        attempt = Attempt(record, taken.step_bytes, taken.temp_bytes)
        return planner(clone_module(module), (attempt,)), share


def plan_for(step: type[Fit] | type[Remat], loss: Callable[..., jax.Array], share: float) -> Any:
    plan, _ = planned(step(budget=Budget(percent=100 * share)), loss, share)
    return plan


def rewritten(plan: MemoryPlan, loss: Callable[..., jax.Array]) -> ir.Module:
    module = clone_module(prepared(loss))
    with module.context, ir.Location.unknown():
        dataclasses.replace(plan, module=module).apply()
    return module


def test_what_fits_stays_as_it_is() -> None:
    function = jax.jit(jax.grad(language_model), compiler_options={"hloom": "fit{budget=8GiB}"})
    function(*arguments())
    record = hloom.records()[-1]
    assert not record.changed
    assert record.complaint is None
    assert record.compiles == 1


def search_on(target: Target, moves: tuple[str, ...] = DEFAULT_MOVES) -> Search:
    settings = PlannerSettings(Budget(), moves=moves)
    return Search(Variants(prepared(language_model), target, settings), moves)


@pytest.mark.parametrize("stack_passes", [0, 2])
def test_loops_that_stack_less_are_faster_where_that_was_measured(stack_passes: int) -> None:
    speed = dataclasses.replace(TARGET.speed, stack_passes=stack_passes)
    module = prepared(language_model)
    with module.context, ir.Location.unknown():
        step = Fit(budget=Budget(size_bytes=2**33))
        plan = step.planner(module, dataclasses.replace(TARGET, speed=speed))(module, ())
        assert plan.empty is (stack_passes == 0)
        assert (saved_bytes(plan.remat.scans) > 0) is (stack_passes > 0)
        assert not plan.remat.blocks
    estimate = plan.record.estimate
    assert (estimate.seconds < 0) is (stack_passes > 0)


def test_what_stacks_cost_is_counted_up_to_where_loops_are_fastest() -> None:
    speed = dataclasses.replace(TARGET.speed, stack_passes=2)
    search = search_on(dataclasses.replace(TARGET, speed=speed))
    with search._variants.base.of.module.context, ir.Location.unknown():
        loops = search._variants.base.model.loops
        fastest = loops.fastest
        free = {price: loops.seconds(price) for price in range(0, fastest.price + 1, STEPS)}
        most_bytes = saved_bytes(loops.plans(fastest.price))
        for price, seconds in free.items():
            plans = loops.plans(price)
            counted_bytes = min(saved_bytes(plans), most_bytes)
            repeated_s = sum(
                loops.pricing.seconds(op) * times for plan in plans for op, times in plan.runs
            )
            assert seconds == pytest.approx(repeated_s - counted_bytes * 2 / speed.bytes_per_s)
        assert list(free.values()) == sorted(free.values(), reverse=True)  # less memory is slower
        assert loops.seconds(fastest.price + STEPS) == loops.seconds(fastest.price)
        # Where no more may be recomputed, loops stay as they are.
        alone = search_on(dataclasses.replace(TARGET, speed=speed), ("chunk",))
        alone.within(Aim(2**40))
        assert set(alone.estimates) == {None}


def saved_bytes(plans: Iterable[ScanPlan]) -> int:
    return sum(plan.freed_bytes - plan.added_bytes for plan in plans)


@pytest.mark.parametrize("loss", [language_model, unrolled])
@pytest.mark.parametrize("share", [0.9, 0.6, 0.4, 0.25, 0.1])
def test_no_plan_is_slower_than_without_the_other_moves(
    loss: Callable[..., jax.Array], share: float
) -> None:
    fit, remat = plan_for(Fit, loss, share), plan_for(Remat, loss, share)
    limit = share * remat.record.unmodified_bytes
    if remat.record.estimate.temp_bytes <= limit:
        assert fit.record.estimate.temp_bytes <= limit
        assert fit.record.cost <= remat.record.cost
    else:
        assert fit.record.estimate.temp_bytes <= remat.record.estimate.temp_bytes


@pytest.mark.parametrize("loss", [language_model, unrolled])
@pytest.mark.parametrize("share", [0.9, 0.6, 0.3, 0.0])
def test_recomputation_alone_is_what_remat_plans(
    loss: Callable[..., jax.Array], share: float
) -> None:
    step = Remat(budget=Budget(percent=100 * share, least=not share), min_bytes=Bytes(0))
    alone = Fit(step.budget, Words(("recompute",)), step.compiles, step.min_bytes)
    (remat, _), (fit, _) = planned(step, loss, share), planned(alone, loss, share)
    assert json.dumps(fit.to_json()) == json.dumps(remat.to_json())
    assert [each.id for each in fit.decisions()] == [each.id for each in remat.decisions()]
    assert not fit.empty
    for plan in (remat, fit):
        with plan.module.context, ir.Location.unknown():
            plan.apply()
    assert str(fit.module) == str(remat.module)


def test_a_loss_head_runs_in_chunks_where_recomputation_cannot_reach() -> None:
    share = 0.3
    remat, fit = plan_for(Remat, language_model, share), plan_for(Fit, language_model, share)
    limit = share * remat.record.unmodified_bytes
    assert remat.record.estimate.temp_bytes > limit
    assert fit.record.estimate.temp_bytes <= limit
    assert "chunk" in [effect.spec.partition("{")[0] for effect in fit.effects]


@pytest.mark.parametrize("loss", [language_model, unrolled])
@pytest.mark.parametrize("budget", ["60%", "30%", "min"])
def test_results_are_the_same(
    monkeypatch: pytest.MonkeyPatch, loss: Callable[..., jax.Array], budget: str
) -> None:
    # A budget below what can be reached here is no error.
    monkeypatch.setenv("HLOOM_STRICT", "0")
    function = jax.value_and_grad(loss)
    wanted = jax.jit(function)(*arguments())
    spec = f"fit{{budget={budget}}}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hloom.HloomWarning)
        got = jax.jit(function, compiler_options={"hloom": spec})(*arguments())
    assert hloom.records()[-1].fell_back is None
    assert_same(got, wanted)


def test_a_plan_is_taken_apart_and_put_together() -> None:
    plan = plan_for(Fit, language_model, 0.3)
    assert plan.moved is not None
    ids = [decision.id for decision in plan.decisions()]
    assert len(set(ids)) == len(ids)
    whole, parts = (
        rewritten(plan, language_model),
        rewritten(plan.restricted_to(ids), language_model),
    )
    assert str(parts) == str(whole)
    nothing = plan.restricted_to(())
    assert nothing.empty
    first = plan.restricted_to(ids[:1])
    assert first.remat.empty, "it is of what all moves make"
    assert not first.empty
    clones = [each for each in ids if each.startswith("remat/")]
    if clones:
        fewer = plan.restricted_to([each for each in ids if each != clones[-1]])
        assert str(rewritten(fewer, language_model)) != str(whole)


def test_a_plan_tells_each_move_with_its_gain_and_its_price() -> None:
    plan = plan_for(Fit, language_model, 0.3)
    found = json.loads(json.dumps(plan.to_json()))
    moves = rows_of(found, "What was done, and what it costs")
    assert [move["move"] for move in moves] == [effect.spec for effect in plan.effects]
    assert moves[-1]["become"] == plan.record.estimate.temp_bytes
    priced = sum(move["adds to a step"] or 0 for move in moves)
    # Each move's own tables follow, and those of what is recomputed.
    assert rows_of(found, "chunk: what runs in chunks")
    assert rows_of(found, "Recomputed rather than kept")
    assert priced == pytest.approx(plan.record.cost)
    assert record_in(found, RematRecord) == plan.record


def test_what_it_did_is_told_in_few_words() -> None:
    plan = plan_for(Fit, language_model, 0.3)
    moves = [effect for effect in plan.effects if not effect.prepares]
    assert plan.effect() == ", ".join(effect.effect for effect in moves)
    assert re.fullmatch(r"\d+ regions? of \d+ operations run in chunks", moves[0].effect)
    assert "one-hot" in [effect.spec for effect in plan.effects]
    assert "scatter" not in plan.effect(), "what prepares for a move is of little interest"
    assert plan.summary().startswith(f"{moves[0].spec}: {moves[0].effect}")


@pytest.mark.parametrize("budget", [Budget(percent=30.0), Budget(percent=0.0, least=True)], ids=str)
def test_nothing_is_recomputed_where_that_is_no_move(budget: Budget) -> None:
    step = Fit(budget=budget, moves=Words(("chunk", "split-loop")))
    plan, _ = planned(step, language_model, 0.3)
    assert plan.remat.empty
    assert [effect.spec.partition("{")[0] for effect in plan.effects][-1] == "chunk"
    for one in plan.record.considered:
        assert one.candidate is None or not one.candidate.recomputes


@pytest.mark.parametrize("keeps_barriers", [True, False])
def test_more_chunks_are_tried_only_where_something_can_be_recomputed(keeps_barriers: bool) -> None:
    """Each count is a plan of `chunk`, which may take seconds."""

    def loss(parameters: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
        x = parameters["embedding"][tokens]
        for w in parameters["layers"]:
            x = x + jnp.tanh(jnp.tanh(x @ w) @ w.T)
        logits = x @ parameters["embedding"].T
        picked = jnp.take_along_axis(logits, tokens[:, None], 1)[:, 0]
        return (jax.nn.logsumexp(logits, axis=1) - picked).mean()

    module, target = prepared(loss), Target(platform="cuda", keeps_barriers=keeps_barriers)
    with module.context, ir.Location.unknown():
        found = Search(Variants(module, target, PlannerSettings()), DEFAULT_MOVES).lowest()
    chunked = {moves_of(one) for one in found}
    counts = {moves for moves in chunked if "chunks=" in moves}
    assert any("chunk" in moves for moves in chunked)
    assert bool(counts) == keeps_barriers


def test_moves_are_spelled_as_words() -> None:
    [step] = Pipeline.parse("fit{moves=chunk+recompute}").passes
    assert step == Fit(moves=Words(("recompute", "chunk")))
    assert str(step) == "fit{moves=recompute+chunk}"
    assert str(Fit()) == "fit"
    with pytest.raises(SpecError, match="Did you mean 'chunk'"):
        Pipeline.parse("fit{moves=recompute+chunks}")
    with pytest.raises(SpecError, match="some of " + ", ".join(MOVES)):
        Fit(moves=Words(()))


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


def prepared_step(lowered: Any, target: Target) -> ir.Module:
    return module_after(lowered, "inline,drop-constraints,cse,free-constants", target)


@pytest.mark.once
def test_the_page_shows_how_a_plan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of the example, planned for an H100; nothing of it is compiled or run."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example, target = importlib.import_module("gpt_train"), targets.load("h100_sxm")
    step = example.TrainStep(example.ModelSizes(), seed=0)
    module = prepared_step(step.lower(), target)
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
    return prepared_step(jax.jit(jax.grad(loss)).lower(*shapes), Target())


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
        bytes_ = first.record.estimate.temp_bytes
        second = step.plan_after(module, Target(), [Attempt(first.record, bytes_, bytes_)])
    assert second.record.found[0].startswith("earlier attempts: 1 plan, none holds, the least is ")
    assert second.record.found[-1].startswith("chosen to hold the budget: ")
    assert dataclasses.replace(second.record, found=()) != second.record
