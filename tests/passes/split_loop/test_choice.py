"""Where a loop is split: within the limit, with the least added time, and as the model has it."""

from __future__ import annotations

import functools
import itertools
import random

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import Mesh

from benchmarks.programs.gpt import Gpt
from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.aim import Aim
from hloom.passes.planner.candidates import PRICES, STEPS, Candidate
from hloom.passes.planner.model import Model
from hloom.passes.planner.price_search import PriceSearch
from hloom.passes.planner.uniform import uniform_plan, uniform_plans
from hloom.passes.split_loop.groups import splittable
from hloom.passes.split_loop.plan import (
    SplitChoice,
    SplitPositionError,
    UniformPlan,
    choose_split,
    even_positions,
    plan_split,
)

LOW, HIGH = UniformPlan(400, 240, 6.0), UniformPlan(1000, 900, 0.0)
"""What is not stacked takes 160 in the one and 100 in the other."""


def test_as_many_iterations_as_fit_keep_more() -> None:
    choice = choose_split(750, [HIGH, LOW], 12)
    assert choice == SplitChoice(LOW, HIGH, 5, 12)
    # 100 beside the stacks: 5 slices of 20 and 7 of 75.
    assert choice.temp_bytes == 100 + 5 * 20 + 7 * 75
    assert choice.seconds == pytest.approx(2.5)
    assert SplitChoice(LOW, HIGH, 4, 12).temp_bytes > 750


def test_what_the_part_in_front_takes_alone_counts() -> None:
    """Its iterations take much beside the stacks, but only when the other stacks are gone."""
    heavy = UniformPlan(800, 240, 6.0)
    assert SplitChoice(heavy, HIGH, 9, 12).temp_bytes == 560 + 9 * 20
    assert SplitChoice(heavy, HIGH, 2, 12).temp_bytes == 100 + 2 * 20 + 10 * 75


@pytest.mark.parametrize("limit", [100, 400, 440, 1000, 5000])
def test_nothing_is_split_where_it_does_not_gain(limit: int) -> None:
    """Under the least plan, at one, so close that a part had one iteration, and where all fits."""
    assert choose_split(limit, [LOW, HIGH], 12) is None


def test_loops_that_are_too_short_stay_whole() -> None:
    assert choose_split(750, [LOW, HIGH], 3) is None
    assert choose_split(750, [], 12) is None


def test_the_best_of_all_pairs_is_taken() -> None:
    draw = random.Random(0)
    for _ in range(50):
        plans = [
            UniformPlan(stacked + draw.randint(10, 90), stacked, draw.random())
            for stacked in draw.sample(range(100, 2000), 5)
        ]
        limit, trips = draw.randint(300, 1900), draw.randint(4, 9)
        whole = [plan.seconds for plan in plans if plan.temp_bytes <= limit]
        split = [
            SplitChoice(one, other, at, trips).seconds
            for one in plans
            for other in plans
            for at in range(2, trips - 1)
            if one.stacked_bytes < other.stacked_bytes and one.seconds > other.seconds
            if SplitChoice(one, other, at, trips).temp_bytes <= limit
        ]
        choice = choose_split(limit, plans, trips)
        best = min(split, default=float("inf"))
        assert (choice is None) == (not split or min(whole, default=float("inf")) <= best)
        assert choice is None or choice.seconds == best


def test_a_billion_iterations_are_not_tried_one_by_one() -> None:
    choice = choose_split(750, [HIGH, LOW], 10**9)
    assert choice is not None
    assert choice.at == -(-(10**9) * 250 // 660)


def test_parts_of_equal_length() -> None:
    assert even_positions(12, 2) == (6,)
    assert even_positions(11, 3) == (4, 7)
    assert even_positions(5, 3) == (2,)
    assert even_positions(4, 3) == (2,)


@functools.cache
def gpt() -> ir.Module:
    sizes = Gpt(scanned=True, layers=8, width=64, heads=2, vocabulary=64, batch=4, sequence=128)
    module = clone_module(sizes.lower().compiler_ir())
    Pipeline.parse("inline,cse,free-constants").run(module, target=targets.load("h100_sxm"))
    return module


def best_seconds(module: ir.Module, limit_bytes: float) -> float:
    """The added time of the best plan of `remat` within the limit, by its model."""
    with module.context, ir.Location.unknown():
        search = PriceSearch(Model(module, targets.load("h100_sxm"), 0))
        aim = Aim(limit_bytes)
        search.within(aim)
        return min(one.seconds for one in filter(aim.fits, search.estimates.values()))


def test_remat_plans_the_parts_otherwise_and_better() -> None:
    whole = gpt()
    with whole.context, ir.Location.unknown():
        (group,), _ = splittable(whole.operation)
        plans = uniform_plans(Model(whole, targets.load("h100_sxm"), 0), group)
    # Between two plans that recompute products in every layer, and none.
    plans.sort(key=lambda plan: plan.temp_bytes)
    low, high = max(itertools.pairwise(plans), key=lambda two: two[0].seconds - two[1].seconds)
    limit = (low.temp_bytes + high.temp_bytes) / 2
    choice = choose_split(limit, plans, group.trip_count)
    assert choice is not None
    split = clone_module(whole)
    spec = f"split-loop{{at={choice.at}}}"
    Pipeline.parse(spec).run(split, target=targets.load("h100_sxm"))
    assert best_seconds(split, limit) < best_seconds(whole, limit)


def test_prices_between_two_that_decide_the_same_are_left_out() -> None:
    """What they decide is what all prices of the grid decide."""
    whole = gpt()
    with whole.context, ir.Location.unknown():
        model = Model(whole, targets.load("h100_sxm"), 0)
        every = {model.loops.plans(price * STEPS) for price in range(PRICES)}
        (group,), _ = splittable(whole.operation)
        plans = uniform_plans(model, group)
        assert {model.estimate(Candidate(0, p * STEPS)).seconds for p in range(PRICES)} == {
            plan.seconds for plan in plans
        }
    assert len(plans) == len(every) > 2


def test_stacks_of_a_plan_are_those_of_a_device() -> None:
    """Of a step over four devices, by parts of a batch, that is about a quarter."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES["fsdp"]), (DATA, MODEL))
    module = clone_module(ShardedDecoder(mesh, layers=4).lower().compiler_ir())
    Pipeline.parse("inline,cse,free-constants").run(module, target=Target())
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        (group,), _ = splittable(module.operation)
        plans = [*uniform_plans(model, group), uniform_plan(model, group, model.estimate(None))]
    assert all(plan.stacked_bytes <= plan.temp_bytes for plan in plans)
    assert group.stacked_bytes / 4 <= plans[-1].stacked_bytes < group.stacked_bytes / 3


def test_a_position_that_leaves_no_part_is_refused() -> None:
    module = gpt()
    with module.context:
        (group,), _ = splittable(module.operation)
    assert plan_split(group, [5, 2]).trip_counts == (2, 3, 3)
    with pytest.raises(SplitPositionError, match="split at 7, its 8 iterations leave a part with"):
        plan_split(group, [7])
    with pytest.raises(SplitPositionError, match="into 2 to 3 parts, not 4"):
        plan_split(group, [2, 4, 6])


def test_plans_that_take_too_long_to_be_a_part_are_not_estimated() -> None:
    """Without them the same splits are found, of those that are worth it."""
    whole = gpt()
    with whole.context, ir.Location.unknown():
        (group,), _ = splittable(whole.operation)
        every = uniform_plans(Model(whole, targets.load("h100_sxm"), 0), group)
        sizes = sorted(plan.temp_bytes for plan in every)
        worth, fewest = 0, len(every)
        for most_s in sorted(plan.seconds for plan in every):
            model = Model(whole, targets.load("h100_sxm"), 0)
            some = uniform_plans(model, group, most_seconds=most_s)
            fewest = min(fewest, len(some))
            for low, high in itertools.pairwise(sizes):
                found, choice = (
                    choose_split((low + high) / 2, plans, group.trip_count)
                    for plans in (some, every)
                )
                if choice is not None and choice.seconds <= most_s:
                    worth += 1
                    assert found == choice
                else:
                    assert found is None or found.seconds > most_s
    assert worth
    assert fewest < len(every)
