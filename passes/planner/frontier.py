"""Computes the frontier of a program: its memory and its added time for each budget.

Each point is the result of `fit` for a budget, if XLA's figures are the predicted ones.
Nothing is compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from jax.extend.mlir import ir

from ..analysis.memory_model.scheduled import scheduled_temp_bytes
from ..analysis.memory_model.targets import memory_rules
from ..framework.feedback import Attempt, temp_limit
from ..framework.options import Budget
from ..framework.spellings import rounded_up
from ..framework.target import Target
from .candidates import STEPS, TOP, Candidate, PlannerSettings
from .comparison import affordable, corrected_bytes, least
from .least_memory import LITTLE
from .loop import CAUTION, best_of, decide, is_worthwhile
from .model import Model, added_work
from .moves import DEFAULT_MOVES, UNDO
from .record import Estimate, Measurement, RematObstacle, RematRecord, measured
from .search import Search
from .variants import Variants, moves_of

_KNEE = 0.05
"""A knee is below the straight line between its neighbours by at least this share of the frontier's
height."""

_CLOSE = 0.02
"""Points closer to each other than this share of the frontier's width are one."""

_LEAST = Budget(percent=0.0, least=True)

_MOST_WORK = 3_000_000
"""The most operations that are simulated for budgets that the user did not request, over all
candidates: at 6 to 8 microseconds each about 20 seconds, for programs of any length."""

_GRAINS = 128
"""Budgets are rounded up, to be short to spell, by at most this part of the frontier's width."""

_PLANS = 5
"""The most plans for a budget."""


@dataclass(frozen=True)
class FrontierPoint:
    """The predicted memory and time of a program on one device under a budget.

    Attributes:
      budget: the budget; None for the unmodified program.
      limit_bytes: the temporary memory that the budget leaves; None where nothing is bounded.
      temp_bytes: temporary memory.
      step_bytes: arguments, results and temporary memory.
      added_seconds: the time of the recomputation, by rooflines; one sixteenth of the time of cheap
        work, since most of it runs inside of kernels that run anyway.
      added_flops: the floating-point operations that are recomputed.
      estimate: the candidate, and its memory by the model alone.
    """

    budget: Budget | None
    limit_bytes: int | None
    temp_bytes: int
    step_bytes: int
    added_seconds: float
    added_flops: float
    estimate: Estimate = field(repr=False)

    @property
    def holds(self) -> bool:
        """Whether the budget is predicted to hold."""
        return self.limit_bytes is None or self.temp_bytes <= self.limit_bytes


@dataclass(frozen=True)
class FrontierAnalysis:
    """A program's points for budgets, by the model of one target.

    Attempts, with the figures of their compiles, correct the model's memory. The ``moves`` are
    those of `fit`.

    Raises walk.NoEntryError where no function is known to be the program.
    """

    module: ir.Module
    target: Target
    min_bytes: int
    attempts: Sequence[Attempt[RematRecord]] = ()
    moves: Sequence[str] = DEFAULT_MOVES
    _scheduled_bytes: dict[Candidate | None, int] = field(default_factory=dict, repr=False)

    @cached_property
    def variants(self) -> Variants:
        """Returns variants of the program after moves, with estimates cached over all budgets."""
        settings = PlannerSettings(_LEAST, _PLANS, tuple(self.moves), self.min_bytes)
        return Variants(self.module, self.target, settings)

    @cached_property
    def _tried(self) -> list[Attempt[RematRecord]]:
        """Returns the attempts that are of this program: a dump may hold any."""
        found = ((each, each.record.estimate) for each in self.attempts)
        return [each for each, one in found if one is None or self.variants.have(one.candidate)]

    @property
    def model(self) -> Model:
        """Returns the estimates of the program without moves."""
        return self.variants.base.model

    @cached_property
    def around_bytes(self) -> int:
        """Returns the bytes of a step besides temporary memory."""
        if self.attempts:
            return self.attempts[0].step_bytes - self.attempts[0].temp_bytes
        return self.model.unmodified().around_bytes

    @cached_property
    def obstacle(self) -> RematObstacle | None:
        """Returns why the program, or its straight-line part, cannot be rewritten."""
        return self.model.obstacle

    @property
    def step_seconds(self) -> float:
        """Returns the time of the step by rooflines, weighted as the added time is."""
        return self.variants.base.step_seconds

    @cached_property
    def unmodified(self) -> FrontierPoint:
        """Returns the point of the unmodified program."""
        return self._point(None, None, self.model.estimate(None))

    @cached_property
    def floor(self) -> FrontierPoint:
        """Returns the point of least memory at a price that is worth it."""
        return self._point(_LEAST, None, least(affordable(self._lowest, self.step_seconds, LITTLE)))

    @cached_property
    def _lowest(self) -> list[Estimate]:
        """Returns estimates among which the least memory is found, the unmodified program first."""
        return Search(self.variants, self.moves).lowest()

    def at(self, budget: Budget) -> FrontierPoint | None:
        """Returns the point of a budget; None where the memory that it bounds is unknown.

        For a budget below the floor it is the floor.
        """
        limit_bytes = self._limit_bytes(budget)
        if limit_bytes is None:
            return None
        return self.floor if budget.least else self._within(budget, limit_bytes)

    def along(self, count: int) -> list[FrontierPoint]:
        """Returns at most ``count`` points from unmodified to the floor, evenly by memory.

        The first is the unmodified program, even where moves take less memory in no more time.
        Each budget is one that its point holds. A plan for it may add less time still, since it
        tries more of the candidates around it. Very long programs have few points.
        """
        bottom = self.floor
        most_bytes = self.unmodified.estimate.temp_bytes
        swept = (one for one in self._swept(count) if one.temp_bytes <= most_bytes)
        chosen = _spread(undominated(swept, by_memory_and_time), count)
        points = [self._point(None, None, one) for one in chosen]
        width = self.unmodified.temp_bytes - bottom.temp_bytes
        points = [one for one in points if one.temp_bytes - bottom.temp_bytes > _CLOSE * width]
        points = undominated([self.unmodified, *points, bottom], _of_point)
        if self.unmodified not in points:
            points.insert(0, self.unmodified)
        return [self._with_budget(point, width // _GRAINS) for point in points]

    def _swept(self, count: int) -> list[Estimate]:
        """Returns estimates of candidates at prices that close the largest gaps in memory.

        They are of the unmodified program, without its checkpoints where that gains time, and of
        the variant with the least memory.
        """
        undone = [UNDO] if any(moves_of(one) == UNDO for one in self._lowest) else []
        moves = dict.fromkeys(["", *undone, moves_of(self.floor.estimate)])
        found = list(self._lowest)
        for each in moves:
            known = [one for one in self._lowest if moves_of(one) == each]
            if known and any(map(_is_on_grid, known)):
                found += self._swept_of(each, known, -(-count // len(moves)))
        return found

    def _swept_of(self, moves: str, known: Sequence[Estimate], count: int) -> list[Estimate]:
        search = Search(self.variants, self.moves, known)
        recomputing = [one for one in known if _is_on_grid(one)]
        lowest = least(recomputing).candidate
        assert lowest is not None
        lowest = replace(lowest, cheap_prefix=0)
        column = {
            one.candidate.price: one
            for one in recomputing
            if one.candidate and replace(lowest, price=one.candidate.price) == one.candidate
        }
        column[TOP] = search.estimate(Candidate.of_moves(moves) if moves else None)
        enough = len(_distinct(known, column.values())) + count
        enough -= len(undominated(known, by_memory_and_time))
        while len(_distinct(known, column.values())) < enough and self._has_time():
            prices = sorted(price for price in column if price >= lowest.price)
            gaps = [
                (_weight(column[low], column[high], low, high), low, high)
                for low, high in itertools.pairwise(prices)
            ]
            weight, low, high = max(gaps, default=(0.0, 0, 0))
            if not weight:
                break
            price = _between(low, high)
            column[price] = search.estimate(replace(lowest, price=price))
        return list(column.values())

    def _with_budget(self, point: FrontierPoint, grain_bytes: int) -> FrontierPoint:
        """Returns the point with a round budget slightly above its memory."""
        if point.estimate.candidate is None or point.budget is not None:
            return point
        step_bytes = int(point.temp_bytes / min(CAUTION)) + self.around_bytes
        budget = Budget(size_bytes=rounded_up(step_bytes, grain_bytes))
        return replace(point, budget=budget, limit_bytes=self._limit_bytes(budget))

    def _within(self, budget: Budget, limit_bytes: int) -> FrontierPoint:
        """Returns the best plan of the closed loop, with the predicted memory in place of XLA's."""
        attempts = list(self._tried)
        # Measurements correct the model, and are no attempts for this budget.
        compiles = len(attempts) + _PLANS
        settings = PlannerSettings(budget, compiles)
        while len(attempts) < compiles:
            known = attempts[-1].record.considered if attempts else ()
            search = Search(self.variants, self.moves, known)
            choice = decide(search, limit_bytes, attempts, settings)
            temp_bytes = self._expected_bytes(choice.estimate)
            record = RematRecord(estimate=choice.estimate, considered=choice.known)
            attempts.append(Attempt(record, temp_bytes + self.around_bytes, temp_bytes))
            if not self._has_scans or not is_worthwhile(attempts, limit_bytes, compiles):
                break
        estimate = attempts[best_of(attempts, limit_bytes, _LEAST)].record.estimate
        assert estimate is not None
        return self._point(budget, limit_bytes, estimate)

    @cached_property
    def _has_scans(self) -> bool:
        """Whether XLA's order may differ from the model's; `scheduled` gives the reason."""
        return bool(self.model.pairs)

    def _expected_bytes(self, estimate: Estimate) -> int:
        """Returns the temporary memory of an estimate, corrected by the figures of the attempts."""
        tried = [
            Measurement(self._scheduled(one.estimate), one.real_bytes)
            for one in measured(self._tried)
        ]
        return int(corrected_bytes(self._scheduled(estimate), tried))

    def _scheduled(self, estimate: Estimate) -> Estimate:
        """Returns the estimate with the memory in the order that XLA chooses."""
        if not self._has_scans:
            return estimate
        if estimate.candidate not in self._scheduled_bytes:
            found = scheduled_temp_bytes(self.rewritten(estimate), rules=memory_rules(self.target))
            self._scheduled_bytes[estimate.candidate] = found
        return replace(estimate, temp_bytes=self._scheduled_bytes[estimate.candidate])

    def rewritten(self, estimate: Estimate) -> ir.Module:
        """Returns the program after the plan of an estimate, its moves included."""
        return self.variants.made_by(estimate.candidate).written(estimate.candidate)

    def _has_time(self) -> bool:
        return self.variants.simulated_operations < _MOST_WORK

    def _limit_bytes(self, budget: Budget) -> int | None:
        whole = self.unmodified
        measured_as_it_is = Attempt(RematRecord(), whole.step_bytes, whole.temp_bytes)
        return temp_limit(budget, [measured_as_it_is], self.target)

    def _point(
        self, budget: Budget | None, limit_bytes: int | None, estimate: Estimate
    ) -> FrontierPoint:
        temp_bytes = self._expected_bytes(estimate)
        variant = self.variants.made_by(estimate.candidate)
        flops, _ = added_work(*variant.model.plan(estimate.candidate), variant.model.pricing)
        flops += variant.added_flops
        return FrontierPoint(
            budget=budget,
            limit_bytes=limit_bytes,
            temp_bytes=temp_bytes,
            step_bytes=temp_bytes + self.around_bytes,
            added_seconds=estimate.seconds,
            added_flops=flops,
            estimate=estimate,
        )


_T = TypeVar("_T")


def undominated(found: Iterable[_T], measure: Callable[[_T], tuple[int, float]]) -> list[_T]:
    """Returns items for which no other takes less memory in as little time; most memory first."""
    kept: list[_T] = []
    for one in sorted(found, key=lambda one: (measure(one)[1], measure(one)[0])):
        if not kept or measure(one)[0] < measure(kept[-1])[0]:
            kept.append(one)
    return kept


def _distinct(*found: Iterable[Estimate]) -> set[tuple[int, float]]:
    return {by_memory_and_time(estimate) for some in found for estimate in some}


def _is_on_grid(estimate: Estimate) -> bool:
    """Whether an estimate is of a candidate by window length and price."""
    candidate = estimate.candidate
    return candidate is not None and candidate.recomputes and not candidate.evicted_to


def by_memory_and_time(estimate: Estimate) -> tuple[int, float]:
    return estimate.temp_bytes, estimate.seconds


def _of_point(point: FrontierPoint) -> tuple[int, float]:
    return point.temp_bytes, point.added_seconds


def _spread(estimates: Sequence[Estimate], count: int) -> list[Estimate]:
    """Returns at most ``count`` estimates, most memory first, without close ones."""
    width = estimates[0].temp_bytes - estimates[-1].temp_bytes
    kept = [estimates[0]]
    for one in estimates[1:]:
        if kept[-1].temp_bytes - one.temp_bytes >= _CLOSE * width:
            kept.append(one)
    while len(kept) > max(count, 2):
        sizes = [one.temp_bytes for one in kept]
        del kept[min(range(1, len(kept) - 1), key=lambda n: sizes[n - 1] - sizes[n + 1])]
    return kept


def _weight(below: Estimate, above: Estimate, low: int, high: int) -> float:
    """Returns the expected gain between two prices: bytes, less for smaller steps."""
    gap_bytes = abs(above.temp_bytes - below.temp_bytes)
    if high - low <= 1 or (high == TOP and high - low <= STEPS):
        return 0.0
    return gap_bytes * min(1.0, (high - low) / STEPS) ** 2


def _between(low: int, high: int) -> int:
    """Returns a price between two, of the grid if one exists: these are the fastest to estimate."""
    middle = (low + high) // 2
    on_grid = round(middle / STEPS) * STEPS
    return on_grid if low < on_grid < high else middle


def knees(points: Sequence[FrontierPoint]) -> tuple[int, ...]:
    """Returns indices in a frontier, most memory first, below which memory becomes more expensive.

    They are the corners of the simplest line that follows the frontier, found by the
    Ramer-Douglas-Peucker algorithm; only corners below the line count: above one a byte is cheap,
    below it expensive.
    """
    if len(points) < 3:
        return ()
    width = (points[0].temp_bytes - points[-1].temp_bytes) or 1
    height = (points[-1].added_seconds - points[0].added_seconds) or 1.0
    at = [
        ((points[0].temp_bytes - one.temp_bytes) / width, one.added_seconds / height)
        for one in points
    ]
    found: set[int] = set()
    spans = [(0, len(points) - 1)]
    while spans:
        first, last = spans.pop()
        (x, y), (end_x, end_y) = at[first], at[last]
        slope = (end_y - y) / ((end_x - x) or 1)
        below = {n: y + slope * (at[n][0] - x) - at[n][1] for n in range(first + 1, last)}
        if not below:
            continue
        farthest = max(below, key=lambda n: abs(below[n]))
        if abs(below[farthest]) < _KNEE:
            continue
        if below[farthest] > 0:
            found.add(farthest)
        spans += [(first, farthest), (farthest, last)]
    return tuple(sorted(found))
