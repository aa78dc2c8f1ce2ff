"""`accumulate` with a budget: the number of microbatches, by the model and then by measuring."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flows.runs import lowered
from support.flows.steps import mlp, mlp_weights, normal

import hloom
from hloom.passes.accumulate import Accumulate
from hloom.passes.accumulate.closed_loop import (
    Correction,
    is_worthwhile,
    next_number,
)
from hloom.passes.accumulate.record import AccumulateRecord
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.feedback import Attempt, attempts, best_of, record_in, temp_limit
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.structure import StructureError, read, written
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

POSSIBLE = (1, 2, 4, 8, 16, 32, 64)


def settled(
    model: Callable[[int], int], real: Callable[[int], int], limit: int, most: int = 16
) -> tuple[int, list[int]]:
    """The number that is used at the end, and what was compiled."""
    made: list[Attempt[AccumulateRecord]] = []
    known: dict[int, int] = {}

    def remembered(number: int) -> int:
        return known.setdefault(number, model(number))

    while len(made) < most:
        number = next_number(POSSIBLE, Correction(remembered, made), made, limit)
        if any(attempt.record.microbatches == number for attempt in made):
            break
        record = AccumulateRecord(None, None, number, POSSIBLE, tuple(known.items()))
        made.append(Attempt(record, real(number) + 100, real(number)))
        if not is_worthwhile(made, limit):
            break
    tried = [attempt.record.microbatches for attempt in made]
    return tried[best_of(made, limit)], tried


def halving(number: int) -> int:
    return 6400 // number + 100


def test_a_true_model_takes_one_compile() -> None:
    assert settled(halving, halving, 10_000) == (1, [1])
    assert settled(halving, halving, 1_000) == (8, [8])
    assert settled(halving, halving, 900) == (8, [8])


def test_a_model_that_is_off_by_a_factor_takes_two() -> None:
    assert settled(lambda number: halving(number) // 2, halving, 1_000) == (8, [4, 8])
    assert settled(lambda number: halving(number) * 3, halving, 1_000) == (8, [32, 8])


def test_what_cannot_be_held_ends_with_the_least() -> None:
    number, tried = settled(halving, halving, 50)
    assert number == 64
    assert tried == [64]


def test_what_raises_memory_is_not_done() -> None:
    assert settled(lambda number: 100 + number, lambda number: 100 + number, 50) == (1, [1])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 1000), min_size=len(POSSIBLE), max_size=len(POSSIBLE)),
    st.lists(st.integers(1, 1000), min_size=len(POSSIBLE), max_size=len(POSSIBLE)),
    st.integers(1, 1200),
)
def test_enough_compiles_find_the_least_number(
    modelled: list[int], measured: list[int], limit: int
) -> None:
    """Whatever the model says, where memory does fall with the number."""
    by_number = dict(zip(POSSIBLE, sorted(modelled, reverse=True), strict=True))
    real = dict(zip(POSSIBLE, sorted(measured, reverse=True), strict=True))
    number, tried = settled(by_number.__getitem__, real.__getitem__, limit)
    assert len(tried) == len(set(tried))
    holding = [each for each in POSSIBLE if real[each] <= limit]
    assert (real[number] <= limit) == bool(holding)
    if not holding:
        assert real[number] == min(real.values())


def test_limits() -> None:
    one = Attempt(AccumulateRecord(None, None, 1), 1100, 1000)
    target = Target(usable_bytes=5000)
    assert temp_limit(Budget(700), [one], target) == 600
    assert temp_limit(Budget(700), [], target, 50) == 650
    assert temp_limit(Budget(percent=25), [one], target) == 250
    assert temp_limit(Budget(percent=25), [], target, 50) is None
    assert temp_limit(Budget(), [one], target) == 4900
    assert temp_limit(Budget(), [one], Target()) is None


def test_a_record_comes_back_from_a_dump() -> None:
    record = AccumulateRecord(None, None, 4, POSSIBLE, ((1, 70), (4, 20)))
    assert read(AccumulateRecord, written(record)) == record


@pytest.mark.parametrize(
    "plan",
    [
        None,
        {"microbatches": 2, "modelled": {"1": 70}},
        {"microbatches": 2, "modelled": [[1, float("inf")]]},
        {"microbatches": 2, "modelled": [["one", 70]]},
        {"microbatches": 2, "modelled": [[1]]},
        {"microbatches": 2, "possible": 4},
        {"microbatches": float("inf")},
    ],
)
def test_what_is_no_record_is_an_error(plan: dict[str, object] | None) -> None:
    with pytest.raises(StructureError):
        read(AccumulateRecord, plan)


def step(weights: Any, x: Any) -> Any:
    return jax.grad(lambda weights: (mlp(weights, x) ** 2).mean())(weights)


ARGUMENTS = mlp_weights(6, 64, 64, 3), normal(256, 6)


def used(spec: str) -> hloom.CompileRecord:
    jax.jit(step).lower(*ARGUMENTS).compile(compiler_options={"hloom": spec})
    return hloom.records()[-1]


def measured_bytes(microbatches: int) -> int:
    record = used(f"accumulate{{microbatches={microbatches}}}")
    assert record.temp_bytes is not None
    return record.temp_bytes


def test_a_share_is_held_with_the_fewest_microbatches() -> None:
    real = {number: measured_bytes(number) for number in (1, 2, 4, 8)}
    assert all(more >= less for more, less in itertools.pairwise(real.values()))
    wanted = next(number for number, size in real.items() if size <= real[1] * 0.4)
    record = used("accumulate{budget=40% compiles=5}")
    assert record.best_attempt is not None
    plan = record.attempts[record.best_attempt].plan
    assert record_in(plan, AccumulateRecord).microbatches == wanted
    assert record.complaint is None
    assert record.temp_bytes == real[wanted]


def test_a_budget_that_holds_anyhow_changes_nothing() -> None:
    record = used("accumulate{budget=1GiB}")
    assert not record.changed
    assert record.compiles == 1


def test_a_budget_that_cannot_hold_is_told() -> None:
    told = r"cannot be held to 8.00 KiB; .*\n  That is with 256 microbatches\."
    with pytest.raises(PassError, match=told):
        used("accumulate{budget=8KiB}")


def test_without_a_number_the_device_is_the_budget() -> None:
    record = used("accumulate")
    assert not record.changed
    assert record.complaint is None


def test_the_least_memory() -> None:
    record = used("accumulate{budget=min}")
    assert record.compiles == 1
    assert record_in(record.attempts[0].plan, AccumulateRecord).microbatches > 8


@pytest.mark.once
def test_a_dry_run_predicts() -> None:
    module = lowered(step, *ARGUMENTS)
    whole = Pipeline.parse("accumulate{budget=min}").passes[0]
    assert isinstance(whole, Accumulate)
    planner = whole.planner(module, Target())
    first = planner(clone_module(module), ()).record
    assert first.prediction is not None
    assert first.prediction.temp_bytes == dict(first.modelled)[first.microbatches]
    half = Accumulate(budget=Budget(percent=50))

    def predicted(earlier: Sequence[Attempt[AccumulateRecord]]) -> Attempt[AccumulateRecord]:
        record = half.plan_after(clone_module(module), Target(), earlier).record
        assert record.prediction is not None
        return Attempt(record, record.prediction.step_bytes, record.prediction.temp_bytes)

    *_, last = attempts(half, Target(), predicted)
    assert last.attempts[0].record.microbatches == 1
    assert last.attempts[last.best].temp_bytes <= last.attempts[0].temp_bytes / 2
