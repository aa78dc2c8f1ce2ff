"""Plans that decide the same in every iteration of a program's loops, to split loops."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..ir import walk
from ..split_loop.groups import LEAST_TRIPS, LoopGroup
from ..split_loop.plan import UniformPlan
from .candidates import EXPENSIVE_PRICES, PRICES, STEPS, Candidate
from .model import Model
from .record import Estimate

LOOPS_ALONE = Candidate(0, 0)
"""The column of plans that recompute in loops alone."""


def uniform_plans(
    model: Model,
    group: LoopGroup,
    columns: Sequence[Candidate] = (LOOPS_ALONE,),
    most_seconds: float = math.inf,
) -> list[UniformPlan]:
    """Returns plans of columns at the grid prices for the model's module with a whole ``group``.

    Where several prices decide the same for loops, the plan is estimated once. A plan is left out
    if no split into it and another adds ``most_seconds`` or less.
    """
    prices = deciding_prices(model)
    candidates = [dataclasses.replace(each, price=price) for each in columns for price in prices]
    seconds = {candidate: model.seconds(candidate) for candidate in candidates}
    # The slower plan runs the fewest iterations that a part may have, the fastest the others.
    others = group.trip_count - LEAST_TRIPS
    longest_s = (most_seconds * group.trip_count - min(seconds.values()) * others) / LEAST_TRIPS
    return [
        uniform_plan(model, group, model.estimate(candidate))
        for candidate in candidates
        if seconds[candidate] <= longest_s
    ]


def uniform_plan(model: Model, group: LoopGroup, estimate: Estimate) -> UniformPlan:
    """Returns an estimate for the model's module, with a whole ``group``, as a plan for that."""
    effects = {} if estimate.candidate is None else model.loops.at(estimate.candidate.price)
    numbers = sorted(model.number[walk.key(each.loop.op)] for each in group.loops)
    rewritten = [effects[number] for number in numbers if number in effects]
    stacks = sum(size for effect in rewritten for _, size in effect.stacks)
    if not rewritten:
        stacks = stacked_bytes(model, group)
    return UniformPlan(estimate.temp_bytes, stacks, estimate.seconds)


def stacked_bytes(model: Model, group: LoopGroup) -> int:
    """Returns the bytes of the stacks of a group's loops on a device."""
    updates = (stack.stack.update.results[0] for stack in group.stacks)
    return sum(model.device.bytes_of(update) or 0 for update in updates)


def deciding_prices(model: Model) -> list[int]:
    """Returns the least price of the grid for each decision about loops.

    Two prices that decide the same agree with all between: a cut of least weight and price at both
    of them is one at each price between, but for rounding.
    """
    found: list[int] = []
    waiting = [range(EXPENSIVE_PRICES), range(EXPENSIVE_PRICES, PRICES)]
    while waiting:
        indices = waiting.pop(0)
        first, last = model.loops.plans(indices[0] * STEPS), model.loops.plans(indices[-1] * STEPS)
        if first == last:
            found.append(indices[0] * STEPS)
        else:
            middle = len(indices) // 2
            waiting[:0] = [indices[:middle], indices[middle:]]
    return [
        price
        for number, price in enumerate(found)
        if not number or model.loops.plans(price) != model.loops.plans(found[number - 1])
    ]
