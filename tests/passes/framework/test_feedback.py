"""The loop of a measured pass, whatever it is measured with, and what is kept of its plans."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from support import toy_passes as toy
from support.modules import module_after

from hloom.passes.framework.feedback import (
    Attempt,
    MeasuredPlan,
    PlanRecord,
    Prediction,
    attempts,
    best_of,
    record_in,
    temp_limit,
)
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.structure import StructureError
from hloom.passes.framework.target import Target
from hloom.passes.planner.record import RematRecord
from hloom.passes.remat import Remat

BUDGET = toy.DropProducts(budget=Budget(size_bytes=25), compiles=4)


def goes_through(*sizes: int, step: toy.DropProducts = BUDGET) -> list[tuple[int, int]]:
    """How many attempts there are after each, and which is the best, where they measure so."""
    left = list(sizes)

    def measure(earlier: tuple[Attempt[PlanRecord], ...]) -> Attempt[PlanRecord] | None:
        assert len(earlier) == len(sizes) - len(left)
        return Attempt(PlanRecord(), size := left.pop(0), size) if left else None

    return [(len(now.attempts), now.best) for now in attempts(step, Target(), measure)]


def test_attempts_go_on_until_the_pass_is_content() -> None:
    assert goes_through(50, 60, 20, 10) == [(1, 0), (2, 0), (3, 2)]


def test_attempts_end_where_there_is_no_more_to_measure() -> None:
    assert goes_through() == []
    assert goes_through(50, 40) == [(1, 0), (2, 1)]


def test_a_pass_bounds_its_attempts() -> None:
    assert goes_through(90, 80, 70, 60, 50) == [(1, 0), (2, 1), (3, 2), (4, 3)]
    once = toy.DropProducts(budget=Budget(size_bytes=1), compiles=1)
    assert goes_through(90, 80, step=once) == [(1, 0)]


def test_what_the_compiler_refused_is_the_best_as_long_as_nothing_was_compiled() -> None:
    made = [(90, 30), (20, 30), (70, None), (60, 30), (50, None), (40, 30)]
    step = toy.DropProducts(budget=Budget(size_bytes=1), compiles=len(made))

    def measure(earlier: tuple[Attempt[PlanRecord], ...]) -> Attempt[PlanRecord]:
        size, limit = made[len(earlier)]
        assert size is not None
        return Attempt(PlanRecord(), size, size, limit)

    bests = [now.best for now in attempts(step, Target(), measure)]
    # The toy wants the least bytes, refused or not.
    assert bests == [0, 0, 2, 2, 2, 2]


def test_the_best_of_all_was_compiled() -> None:
    made = [
        Attempt(PlanRecord(), 30, 20, 25),
        Attempt(PlanRecord(), 90, 80),
        Attempt(PlanRecord(), 70, 60),
    ]
    assert best_of(made, 100) == 1
    assert best_of(made, 10) == 2
    assert best_of(made[:1], 10) == 0


def test_of_nearly_the_least_memory_the_cheapest_is_used() -> None:
    @dataclasses.dataclass(frozen=True)
    class Costly(PlanRecord):
        seconds: float = 0.0

        @property
        def cost(self) -> float:
            return self.seconds

    sizes = ((10_000_256, 2.0), (10_000_000, 9.0), (10_000_512, 1.0), (10_002_000, 0.5))
    made = [Attempt(Costly(seconds=cost), size, size) for size, cost in sizes]
    assert [best_of(made[:count], 10) for count in (1, 2, 3, 4)] == [0, 0, 2, 2]
    assert best_of(made, 10_000_100) == 1  # what a budget asks for is asked to the byte


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        (Budget(size_bytes=50), 40),
        # The compiler allows 60 bytes, of which 10 are around the temporaries.
        (Budget(size_bytes=90), 50),
        (Budget(percent=50), 45),
        (Budget(percent=90), 50),
        (Budget(), 50),
    ],
)
def test_no_budget_leaves_more_than_the_compiler_allows(budget: Budget, limit: int) -> None:
    made = [Attempt(PlanRecord(), 100, 90, 60), Attempt(PlanRecord(), 61, 51, 60)]
    assert temp_limit(budget, made, Target()) == limit
    assert all(each.temp_bytes > limit for each in made)


class Added(PlanRecord):
    """A plan that changes nothing where it adds nothing."""

    @property
    def is_unmodified(self) -> bool:
        return self.cost == 0


def tried(*plans: tuple[int, float]) -> list[Attempt[PlanRecord]]:
    """Attempts of 10 bytes around the temporaries, and what their plans add, by both."""
    return [
        Attempt(Added(Prediction(temp_bytes + 10, temp_bytes, added)), temp_bytes + 10, temp_bytes)
        for temp_bytes, added in plans
    ]


@pytest.mark.parametrize(
    ("limit_bytes", "best"),
    [
        (80, 1),  # of two that hold at the same price the oldest
        (45, 3),
        (30, 3),  # none holds: the least memory
        (None, 3),
    ],
)
def test_the_cheapest_that_holds_is_used(limit_bytes: int | None, best: int) -> None:
    made = tried((90, 0.0), (70, 2.0), (50, 2.0), (40, 9.0))
    assert best_of(made, limit_bytes) == best


@pytest.mark.parametrize(
    ("step_s", "best"),
    [
        ((1.0, 3.0, 2.0), 2),  # the fastest that holds, though its plan adds more
        ((1.0, 2.05, 2.0), 1),  # of those that are about as fast the one that adds less
        ((1.0, None, 2.0), 1),  # not known of all: by what the plans add
        ((None, None, None), 1),
    ],
)
def test_the_fastest_that_holds_is_used(step_s: tuple[float | None, ...], best: int) -> None:
    made = tried((90, 0.0), (70, 2.0), (50, 9.0))
    timed = [dataclasses.replace(each, step_s=s) for each, s in zip(made, step_s, strict=True)]
    assert best_of(timed, 80) == best


def test_what_a_budget_leaves_for_temporaries() -> None:
    def left(
        budget: Budget, made: list[Attempt[PlanRecord]], around_bytes: int | None = None
    ) -> int | None:
        target = Target(usable_bytes=100)
        return temp_limit(budget, made, target, around_bytes)

    size, share = Budget(size_bytes=60), Budget(percent=50.0)
    assert left(size, tried((90, 0.0))) == 50
    assert left(size, [], around_bytes=20) == 40
    assert left(size, []) is None
    assert left(share, tried((40, 2.0), (90, 0.0))) == 45
    assert left(share, tried((40, 2.0))) is None
    assert left(Budget(), tried((90, 0.0))) == 90


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(6):
        x = x + jax.numpy.tanh(x @ w) @ w
    return (x**2).mean()


@pytest.mark.parametrize("budget", [None, "40%", "1KiB"])
def test_a_plan_of_remat_reads_back_from_its_json(budget: str | None) -> None:
    arguments = np.ones((64, 64), np.float32), np.ones((512, 64), np.float32)
    module = module_after(jax.jit(jax.value_and_grad(loss)).lower(*arguments))
    spec = "remat" if budget is None else f"remat{{budget={budget}}}"
    [step] = Pipeline.parse(spec).passes
    assert isinstance(step, Remat)
    with module.context, ir.Location.unknown():
        plan = step.plan(module, Target())
    assert isinstance(plan, MeasuredPlan)
    dumped = json.loads(json.dumps(plan.to_json()))
    assert record_in(dumped, RematRecord) == plan.record
    assert (plan.record.prediction is None) == (budget is None)


def test_a_dump_without_a_record_is_an_error() -> None:
    with pytest.raises(StructureError):
        record_in({"record": None}, RematRecord)
