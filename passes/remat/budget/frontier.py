"""The frontier of a program: the memory that a budget gives it, and the time that this adds.

Each point is what `remat` plans first for a budget. Nothing is compiled and no IR is edited.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jax.extend.mlir import ir

from hloom.passes.analysis.loops.counted import runs_of
from hloom.passes.framework.base import Target
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.options import Budget
from hloom.passes.remat.budget.added_work import added_work
from hloom.passes.remat.budget.closed_loop import decide
from hloom.passes.remat.budget.estimate import Model
from hloom.passes.remat.budget.search import Search, corrected_bytes
from hloom.passes.remat.obstacle import RematObstacle, obstacle_of
from hloom.passes.remat.record import Estimate, RematRecord, measured

_KINK = 0.05
"""A kink lies below the straight line between its neighbours by at least this share of the whole
frontier's height."""

_SMALLEST_GAP = 0.02
"""Budgets are not tried between two that differ by less than this share of the frontier's width."""

_MOST_WORK = 3_000_000
"""Operations that may be simulated for budgets that nobody asked for, over all candidates: at 6 to
8 microseconds each about 20 seconds, for programs of any length."""

_ROUND = 256
"""Budgets are multiples of a power of two that is at least this part of the frontier's width."""

_CAUTION = 0.97
"""A plan aims at this share of its budget at least."""


@dataclass(frozen=True)
class FrontierPoint:
    """What the program is predicted to take of one device under a budget.

    Attributes:
      budget: the budget; None for the program as it is.
      limit_bytes: the temporary memory that the budget leaves; None where nothing is bounded.
      temp_bytes: temporary memory.
      step_bytes: arguments, results and temporary memory.
      added_seconds: what the recomputation takes, by rooflines; of cheap work one sixteenth, since
        most of it runs inside of kernels that run anyway.
      added_flops: the floating-point operations that are done once more.
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

    Attempts, with the figures of their compiles, correct the model's memory.

    Raises walk.NoEntryError where no function is known to be the program.
    """

    module: ir.Module
    target: Target
    min_bytes: int
    attempts: Sequence[Attempt[RematRecord]] = ()

    @cached_property
    def model(self) -> Model:
        """The estimates of the candidates, cached over all budgets."""
        return Model(self.module, self.target, self.min_bytes)

    @cached_property
    def around_bytes(self) -> int:
        """What the step takes beside temporary memory."""
        if self.attempts:
            return self.attempts[0].step_bytes - self.attempts[0].temp_bytes
        memory = self.model.unmodified()
        return memory.argument_bytes + memory.output_bytes - memory.alias_bytes

    @cached_property
    def obstacle(self) -> RematObstacle | None:
        """Why the program, or its straight-line part, cannot be rewritten."""
        return obstacle_of(
            self.model.operations,
            keeps_barriers=self.target.keeps_barriers,
            scans=bool(self.model.pairs),
            lines=bool(self.model.block_plans.forwards),
        )

    @cached_property
    def step_seconds(self) -> float:
        """The time of the step by rooflines, weighted as the added time is."""
        pricing = self.model.pricing
        return sum(
            runs_of(block) * sum(pricing.seconds(op.operation) for op in block.operations)
            for block in self.model.blocks
        )

    @cached_property
    def unmodified(self) -> FrontierPoint:
        """The program as it is."""
        return self._point(None, None, self.model.estimate(None))

    @cached_property
    def floor(self) -> FrontierPoint:
        """The least memory that is known to be reached, with the budget that it holds."""
        return self._within(Budget(percent=0.0, least=True), 0)

    def at(self, budget: Budget) -> FrontierPoint | None:
        """What a budget gives; None where nothing is known that it bounds.

        Where the budget is below the floor it is the floor.
        """
        limit_bytes = self._limit_bytes(budget)
        if limit_bytes is None:
            return None
        return self._within(budget, limit_bytes)

    def along(self, count: int) -> list[FrontierPoint]:
        """About ``count`` points from the program as it is down to the floor, without dominated
        ones; fewer where the program has no more, or is very long."""
        top, bottom = self.unmodified, self.floor
        width = top.temp_bytes - bottom.temp_bytes
        found = [top]
        if width <= 0:
            return found
        found.append(bottom)
        unit_bytes = 1 << max(0, (width // _ROUND).bit_length() - 1)
        gaps = [(bottom.temp_bytes / _CAUTION, float(top.temp_bytes))]
        while gaps and len(undominated(found)) < count and self._has_time():
            gaps.sort(key=lambda gap: gap[1] - gap[0])
            low, high = gaps.pop()
            step_bytes = int(low + high) // 2 + self.around_bytes
            budget = Budget(size_bytes=-(-step_bytes // unit_bytes) * unit_bytes)
            point = self.at(budget)
            if point is None or point.limit_bytes is None or not low < point.limit_bytes < high:
                continue
            found.append(point)
            rest = [(low, float(point.temp_bytes)), (float(point.limit_bytes), high)]
            gaps += [gap for gap in rest if gap[1] - gap[0] > _SMALLEST_GAP * width]
        return undominated(found)

    def _within(self, budget: Budget, limit_bytes: int) -> FrontierPoint:
        choice = decide(Search(self.model), limit_bytes, self.attempts)
        return self._point(budget, None if budget.least else limit_bytes, choice.estimate)

    def _has_time(self) -> bool:
        return self.model.simulated * len(self.model.operations) < _MOST_WORK

    def _limit_bytes(self, budget: Budget) -> int | None:
        if budget.percent is not None:
            return int(self.unmodified.temp_bytes * budget.percent / 100)
        bound = self.target.usable_bytes if budget.size_bytes is None else budget.size_bytes
        return None if bound is None else bound - self.around_bytes

    def _point(
        self, budget: Budget | None, limit_bytes: int | None, estimate: Estimate
    ) -> FrontierPoint:
        temp_bytes = int(corrected_bytes(estimate, measured(self.attempts)))
        flops = 0.0
        if estimate.candidate is not None:
            flops, _ = added_work(*self.model.plan(estimate.candidate), self.model.pricing)
        return FrontierPoint(
            budget=budget,
            limit_bytes=limit_bytes,
            temp_bytes=temp_bytes,
            step_bytes=temp_bytes + self.around_bytes,
            added_seconds=estimate.seconds,
            added_flops=flops,
            estimate=estimate,
        )


def undominated(points: Iterable[FrontierPoint]) -> list[FrontierPoint]:
    """The points than which none takes less memory in as little time; most memory first."""
    found: list[FrontierPoint] = []
    for point in sorted(points, key=lambda one: (one.added_seconds, one.temp_bytes)):
        if not found or point.temp_bytes < found[-1].temp_bytes:
            found.append(point)
    return found


def kinks(points: Sequence[FrontierPoint]) -> tuple[int, ...]:
    """The places, in a frontier with most memory first, below which memory becomes dearer.

    They are the corners of the simplest line that follows the frontier, found as Ramer, Douglas and
    Peucker do; only corners below the line count: above one a byte is cheap, below it dear.
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
        if abs(below[farthest]) < _KINK:
            continue
        if below[farthest] > 0:
            found.add(farthest)
        spans += [(first, farthest), (farthest, last)]
    return tuple(sorted(found))
