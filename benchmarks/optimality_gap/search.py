"""The search of `remat`, its candidates measured in the machine that the optimum is of."""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.framework.target import Target
from hloom.passes.planner.aim import Aim
from hloom.passes.planner.candidates import Candidate
from hloom.passes.planner.comparison import least
from hloom.passes.planner.machine.plan import EvictedPlans
from hloom.passes.planner.machine.windowed import WindowedMachine, WindowedPlan, WindowedRun
from hloom.passes.planner.model import Model
from hloom.passes.planner.price_search import PriceSearch
from hloom.passes.planner.record import Estimate
from hloom.passes.recompute.block.schedule import CloneSchedule


class MachineModel(Model):
    """Candidates for the main block of a module without loops, by what the machine runs."""

    def __init__(self, module: ir.Module, target: Target, min_bytes: int) -> None:
        super().__init__(module, target, min_bytes)
        self._evicted = EvictedPlans(self.block_plans.forwards[self.main])
        self.machine = self._evicted.machine
        self._unmodified = WindowedMachine(self.machine.problem).run(WindowedPlan([]))
        self._runs: dict[CloneSchedule, WindowedRun] = {}

    def run(self, candidate: Candidate | None) -> WindowedRun:
        """What a candidate's plan takes; None is the program as it is."""
        schedules = {} if candidate is None else self.block_plans.schedules(candidate)
        if self.main not in schedules:
            return self._unmodified
        schedule = schedules[self.main]
        if schedule not in self._runs:
            self._runs[schedule] = self._evicted.run(schedule)
        return self._runs[schedule]

    def estimate(self, candidate: Candidate | None) -> Estimate:
        found = self.run(candidate)
        return Estimate(candidate, found.peak_bytes, found.seconds)

    def seconds(self, candidate: Candidate) -> float:
        return self.run(candidate).seconds

    def are_alike(self, one: Candidate | None, other: Candidate | None) -> bool:
        return self.run(one) is self.run(other)

    def step_seconds(self) -> float:
        """The time of the program as it is, weighted as added time is."""
        return sum(self.pricing.seconds(op) for op in self.machine.forward.graph.ops)

    def floor(self) -> WindowedRun:
        """What the search comes to where it looks for the least memory."""
        return self.run(least(PriceSearch(self).lowest()).candidate)

    def within(self, limit_bytes: int) -> WindowedRun | None:
        """What the search comes to within a bound on memory; None where nothing fits."""
        search, aim = PriceSearch(self), Aim(limit_bytes)
        search.evict(aim)
        search.refine(search.at_grid_prices(aim), aim)
        found = aim.best((*search.estimates.values(), *search.lowest()))
        return None if found is None else self.run(found.candidate)
