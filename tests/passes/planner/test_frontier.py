"""The frontier: more memory is never slower, its points are what plans reach, knees are found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.modules import module_after
from support.programs.chains import scanned, unrolled

from hloom.passes.fit import Fit
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.planner.candidates import TOP, Candidate, PlannerSettings
from hloom.passes.planner.frontier import FrontierAnalysis, FrontierPoint, knees, undominated
from hloom.passes.planner.plan import MemoryPlanner
from hloom.passes.planner.record import Estimate, RematObstacle, RematRecord
from hloom.passes.remat import Remat

pytestmark = pytest.mark.once

LAYERS, ROWS, WIDTH = 16, 512, 64
GPU = Target("cuda", "gpu", memory_bytes=2**30, usable_bytes=2**29)


FORMS = {"unrolled": unrolled, "scanned": scanned}


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, "float32")


@contextmanager
def analysis_of(function: Any, target: Target = GPU, **more: Any) -> Iterator[FrontierAnalysis]:
    lowered = jax.jit(function).lower(shape(LAYERS, WIDTH, WIDTH), shape(ROWS, WIDTH))
    module = module_after(lowered, target=target)
    with module.context, ir.Location.unknown():
        yield FrontierAnalysis(module, target, 0, **more)


@pytest.fixture(params=FORMS, scope="module")
def analysis(request: pytest.FixtureRequest) -> Iterator[FrontierAnalysis]:
    with analysis_of(jax.grad(FORMS[request.param])) as found:
        yield found


@pytest.fixture(scope="module")
def along(analysis: FrontierAnalysis) -> list[FrontierPoint]:
    return analysis.along(8)


def test_less_memory_takes_more_time(along: list[FrontierPoint]) -> None:
    assert 4 <= len(along) <= 9
    for more, less in itertools.pairwise(along):
        assert more.temp_bytes > less.temp_bytes
        assert more.added_seconds < less.added_seconds
    assert along[0].budget is None
    assert along[0].added_flops == 0
    assert along[-1].budget == Budget(percent=0.0, least=True)
    assert along[-1].added_flops > 0


def first_plan(analysis: FrontierAnalysis, budget: Budget) -> RematRecord:
    planner = MemoryPlanner(
        analysis.module, analysis.target, PlannerSettings(budget, 3, min_bytes=analysis.min_bytes)
    )
    attempts: list[Attempt[RematRecord]] = []
    if budget.percent is not None:
        # A share is of what the program takes as it is, which is compiled first.
        record = planner(analysis.module, attempts).record
        attempts.append(
            Attempt(record, analysis.unmodified.step_bytes, analysis.unmodified.temp_bytes)
        )
    return planner(analysis.module, attempts).record


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_a_size_gives_what_the_pass_plans_for_it(share: float) -> None:
    with analysis_of(jax.grad(unrolled)) as analysis:
        budget = Budget(size_bytes=int(analysis.unmodified.step_bytes * share))
        point = analysis.at(budget)
        record = first_plan(analysis, budget)
    assert point.estimate == record.estimate
    assert point.step_bytes == record.prediction.step_bytes
    assert point.added_flops == record.prediction.added_flops


@pytest.mark.parametrize("percent", [50.0, 70.0])
def test_a_share_gives_what_the_pass_plans_for_it(percent: float) -> None:
    with analysis_of(jax.grad(unrolled)) as analysis:
        point = analysis.at(Budget(percent=percent))
        record = first_plan(analysis, Budget(percent=percent))
    assert point.estimate == record.estimate
    assert point.temp_bytes <= analysis.unmodified.temp_bytes * percent / 100


def test_below_the_floor_there_is_the_floor(analysis: FrontierAnalysis) -> None:
    point = analysis.at(Budget(size_bytes=1))
    assert not point.holds
    assert point.estimate == analysis.floor.estimate
    assert analysis.at(Budget(percent=0.0, least=True)) == analysis.floor


def test_fit_is_the_memory_of_the_target(analysis: FrontierAnalysis) -> None:
    point = analysis.at(Budget())
    assert point.limit_bytes == 2**29 - analysis.around_bytes
    assert point.estimate.candidate is None  # it fits as it is


def test_fit_without_a_known_memory_is_nothing() -> None:
    with analysis_of(jax.grad(unrolled), Target("cuda", "gpu")) as analysis:
        assert analysis.at(Budget()) is None


def test_the_same_module_gives_the_same_points(analysis: FrontierAnalysis) -> None:
    again = FrontierAnalysis(analysis.module, analysis.target, analysis.min_bytes)
    assert again.along(8) == analysis.along(8)


def test_it_edits_nothing(analysis: FrontierAnalysis, along: list[FrontierPoint]) -> None:
    before = str(analysis.module)
    FrontierAnalysis(analysis.module, analysis.target, 0).along(4)
    assert along
    assert str(analysis.module) == before


def test_the_figures_of_compiles_correct_the_model() -> None:
    with analysis_of(jax.grad(unrolled)) as analysis:
        plain = analysis.at(Budget(percent=50.0))
        model = analysis.unmodified.estimate
        assert plain is not None
    tried = Attempt(RematRecord(estimate=model), 5 * model.temp_bytes, 2 * model.temp_bytes)
    with analysis_of(jax.grad(unrolled), attempts=(tried,)) as analysis:
        assert analysis.unmodified.temp_bytes == 2 * model.temp_bytes
        assert analysis.around_bytes == 3 * model.temp_bytes
        point = analysis.at(Budget(percent=50.0))
        assert point.estimate.candidate == plain.estimate.candidate
        assert point.temp_bytes == 2 * plain.temp_bytes


OTHERS = (
    Candidate(0, TOP, moves="one-hot"),
    Candidate(0, 0, moves="split-loop{at=999}"),
    Candidate(4, TOP, evicted_to=9),
)


def test_plans_of_another_program_are_left_out() -> None:
    """As a dump may have them: moves that find nothing to do, evictions where there are scans."""
    others = tuple(Estimate(other, 1, 0.0) for other in OTHERS)
    with analysis_of(jax.grad(scanned)) as analysis:
        unmodified = analysis.unmodified.estimate
        size = unmodified.temp_bytes
        own = Attempt(RematRecord(estimate=unmodified), 3 * size, size)
        with_others = [
            *(Attempt(RematRecord(estimate=other), 3 * size, size) for other in others),
            replace(own, record=replace(own.record, considered=others)),
        ]
        points = [
            FrontierAnalysis(analysis.module, analysis.target, 0, attempts).at(Budget(percent=50.0))
            for attempts in ([own], with_others)
        ]
    assert points[0] is not None
    assert points[0] == points[1]


@pytest.mark.parametrize(
    "step", [Fit(budget=Budget(size_bytes=1)), Remat(budget=Budget(size_bytes=1))], ids=str
)
@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_plan_after_one_of_another_program_is_refused_in_a_line(
    step: Fit | Remat, other: Candidate
) -> None:
    record = RematRecord(estimate=Estimate(other, 1, 0.0))
    with analysis_of(jax.grad(scanned)) as analysis:
        planner = step.planner(analysis.module, analysis.target)
        with pytest.raises(ValueError, match="a plan has the") as caught:
            planner(analysis.module, [Attempt(record, 1, 0)])
    assert str(caught.value).isprintable()


def test_where_nothing_is_held_there_is_one_point() -> None:
    with analysis_of(lambda x, w: jnp.tanh(x)) as analysis:
        assert [point.budget for point in analysis.along(10)] == [None]
        assert analysis.obstacle is RematObstacle.NOTHING_HELD


def test_a_long_program_has_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloom.passes.planner.frontier._MOST_WORK", 1)
    with analysis_of(jax.grad(unrolled)) as analysis:
        analysis.floor  # noqa: B018 # what it takes is there in any case
        known = analysis.model.simulated
        assert len(analysis.along(50)) >= 2
        assert analysis.model.simulated == known


def test_the_step_takes_the_time_of_all_its_layers() -> None:
    with analysis_of(jax.grad(unrolled)) as one, analysis_of(jax.grad(scanned)) as other:
        # A scan also writes and reads what it stacks.
        assert 0 < one.step_seconds < other.step_seconds < 2 * one.step_seconds


def points(*pairs: tuple[int, float]) -> list[FrontierPoint]:
    return [
        FrontierPoint(None, None, bytes_, bytes_, seconds, 0.0, Estimate(None, bytes_, seconds))
        for bytes_, seconds in pairs
    ]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(100, 0.0), (50, 1.0), (0, 2.0)], ()),
        ([(100, 0.0), (40, 0.1), (0, 2.0)], (1,)),
        ([(100, 0.0), (70, 0.0), (60, 0.5), (30, 0.6), (0, 2.0)], (1, 3)),
        ([(100, 0.0), (90, 1.9), (0, 2.0)], ()),
        ([(100, 0.0), (0, 2.0)], ()),
        ([(100, 0.0)], ()),
        ([], ()),
        ([(5, 0.0), (5, 0.0), (5, 0.0)], ()),
    ],
)
def test_knees_are_corners_below_the_line(
    pairs: list[tuple[int, float]], expected: tuple[int, ...]
) -> None:
    assert knees(points(*pairs)) == expected


def test_what_another_beats_in_both_is_left_out() -> None:
    pairs = [(10, 5.0), (30, 1.0), (20, 1.0), (20, 3.0), (40, 0.0), (50, 0.0)]
    assert undominated(pairs, lambda pair: pair) == [(40, 0.0), (20, 1.0), (10, 5.0)]


def test_the_shown_specs_are_specs() -> None:
    with analysis_of(jax.grad(unrolled)) as analysis:
        for point in analysis.along(5)[1:]:
            [step] = Pipeline.parse(str(Remat(budget=point.budget))).passes
            assert isinstance(step, Remat)
            assert step.budget == point.budget


def test_attempts_for_another_budget_are_no_attempts_for_this_one() -> None:
    """However many there were, plans aim at the budget before they aim at the least memory."""
    with analysis_of(jax.grad(scanned)) as analysis:
        tried = []
        for candidate in [point.estimate for point in analysis.along(8)][:1] * 6:
            record = RematRecord(estimate=candidate, considered=(candidate,))
            around = analysis.around_bytes
            tried.append(Attempt(record, candidate.temp_bytes + around, candidate.temp_bytes))
        found, wanted = (
            FrontierAnalysis(analysis.module, analysis.target, 0, each).at(Budget(percent=60.0))
            for each in (tried, tried[:3])  # as cautious as with more
        )
    assert found.estimate == wanted.estimate
    assert found.temp_bytes > analysis.floor.temp_bytes


def test_matrices_that_are_drawn_by_a_constant_key_are_made_again() -> None:
    """They take as many operations as those of any other key, and are kept like these: in the
    backward pass each is made again, beside the sign that is kept of each layer."""

    def drawn(seed: int) -> jax.Array:
        bits = jnp.arange(WIDTH * WIDTH, dtype="uint32").reshape(WIDTH, WIDTH) + jnp.uint32(seed)
        for turn in range(3, 23):
            bits = bits + ((bits << turn) ^ (bits >> (26 - turn)))
        return bits.astype("float32") / 2.0**32 - 0.5

    def loss(_: jax.Array, x: jax.Array) -> jax.Array:
        x = x[: 2 * WIDTH]
        for seed in range(LAYERS):
            x = jax.nn.relu(x @ drawn(seed) + 1)
        return jnp.mean(x)

    with analysis_of(jax.value_and_grad(loss, argnums=1)) as analysis:
        held = analysis.at(Budget(percent=50.0))
    assert held.holds
    assert held.added_seconds < 0.1 * analysis.step_seconds
