"""What plans of `remat` take that treat all iterations of a loop alike, by its model."""

from __future__ import annotations

from ..ir import walk
from ..remat.budget.estimate import Model
from ..remat.budget.price_grid import PRICES, STEPS, Candidate
from .choice import UniformPlan
from .groups import LoopGroup


def uniform_plans(model: Model, group: LoopGroup, window_length: int = 0) -> list[UniformPlan]:
    """The plans at the grid prices for the model's module, in which ``group`` is whole.

    Where several prices decide the same for loops, the plan is estimated once.
    """
    numbers = {model.number[walk.key(each.loop.op)] for each in group.loops}
    found: list[UniformPlan] = []
    before = None
    for price in range(0, PRICES * STEPS, STEPS):
        plans = model.loops.plans(price)
        if plans == before:
            continue
        before = plans
        effects = model.loops.at(price)
        estimate = model.estimate(Candidate(window_length, price))
        rewritten = [effects[number] for number in sorted(numbers & effects.keys())]
        stacked_bytes = sum(size for effect in rewritten for _, size in effect.stacks)
        if not rewritten:
            stacked_bytes = group.stacked_bytes
        found.append(UniformPlan(estimate.temp_bytes, stacked_bytes, estimate.seconds))
    return found
