"""The planner of memory finds the moves and recomputation that hold a budget in the least time.

In the order in which a module passes through it:

- ``candidates``: the planner's settings; its candidates, each a window length and a price of
  recomputation, and the moves before it;
- ``moves``: the other passes that are tried, and the modules that they produce;
- ``block_plans``, ``loop_effects``: a candidate's clones in straight-line blocks, and what its
  rewritten loops change around them;
- ``model``: a candidate's memory and added time; ``variants``: those of the modules after moves;
- ``comparison``: which of two estimates is better, and how XLA's figures of one correct another;
  ``aim``: which are expected to hold a bound;
- ``price_search``: the candidates of one program that are estimated for a bound on memory, with
  those of ``machine/``, plans by evictions, among them; ``search``: those of all variants, by
  strategies in their order; ``uniform`` has the plans that loops are split by;
- ``leave_stacks``: writes a plan; its loops leave stacks unfilled as those before did;
- ``other_means``: moves that are off unless named, and a lower ``min_bytes``, which would help
  where a budget was missed;
- ``loop``: the candidate to compile next, by XLA's figures of earlier ones; ``least_memory``: those
  that `min` compiles; ``strategy``: the rows of both tables of strategies, and what they found;
- ``plan``: the plan of the chosen candidate; ``record``: what an attempt remembers;
- ``frontier``: the predicted results of other budgets.

`PlannedPass` is the base of `remat` and `fit`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from jax.extend.mlir import ir

from ..analysis.device import DeviceView
from ..analysis.loops.carries import loop_stacks
from ..analysis.memory_model.targets import memory_rules
from ..budgeted import BudgetedPass, least_bytes
from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.feedback import Attempt, Complaint, MeasuredPlan, Planner
from ..framework.target import Target
from ..framework.text import size, upper_first
from ..free_constants import FreeConstants
from .candidates import PlannerSettings
from .least_memory import LITTLE
from .loop import best_of, is_worthwhile, saves_enough
from .other_means import describe_left, describe_others
from .plan import MemoryPlan, MemoryPlanner
from .record import RematObstacle, RematRecord

COMPILES_DOC = (
    "how often the program may be compiled to hold the budget; the last of three, or the last two "
    "of more, are for the least memory, where none before held it"
)

_OTHERS = "hloom.estimate, or `hloom budgets` on a dump, tells what other budgets give."


class PlannedPass(BudgetedPass[RematRecord]):
    """A pass whose plans the planner makes."""

    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse, FreeConstants)
    once: ClassVar[bool] = True
    saves_memory: ClassVar[bool] = True
    record_type: ClassVar[type[RematRecord]] = RematRecord

    @property
    @abstractmethod
    def settings(self) -> PlannerSettings | None:
        """Returns the planner's settings; None without a budget."""

    def plan_after(
        self, module: ir.Module, target: Target, attempts: Sequence[Attempt[RematRecord]]
    ) -> MeasuredPlan[RematRecord]:
        return self.planner(module, target)(module, attempts)

    def planner(self, origin: ir.Module, target: Target) -> Planner[RematRecord]:
        assert self.settings is not None
        return MemoryPlanner(origin, target, self.settings)

    def is_worthwhile(self, attempts: Sequence[Attempt[RematRecord]], limit_bytes: int) -> bool:
        return is_worthwhile(attempts, limit_bytes, self.compiles)

    def best(self, attempts: Sequence[Attempt[RematRecord]], target: Target) -> int:
        if self.bound is None:
            return super().best(attempts, target)
        return best_of(attempts, self.limit_bytes(attempts, target), self.bound)

    def complaint(
        self,
        attempts: Sequence[Attempt[RematRecord]],
        best: int,
        target: Target,
        module_of_best: Callable[[], ir.Module],
        unmodified: Callable[[], ir.Module],
    ) -> Complaint | None:
        if attempts and attempts[0].record.obstacle is RematObstacle.HELPER:
            return None
        found = super().complaint(attempts, best, target, module_of_best, unmodified)
        limit_bytes = self.limit_bytes(attempts, target) if attempts else None
        if found is None or found.topic or limit_bytes is None or self.settings is None:
            return found
        attempt, is_share = attempts[best], self.settings.budget.percent is not None
        if attempt.temp_bytes <= limit_bytes:
            return found

        def programs() -> Iterator[tuple[ir.Module, int | None]]:
            yield module_of_best(), attempt.temp_bytes
            if not attempt.record.is_unmodified:  # the plan's own loops may stand in a move's way
                before = (each.temp_bytes for each in attempts if each.record.is_unmodified)
                yield unmodified(), next(before, None)

        others = describe_others(
            programs(),
            target,
            self.settings.moves,
            limit_bytes=limit_bytes,
            around_bytes=0 if is_share else attempt.step_bytes - attempt.temp_bytes,
        )
        return replace(found, text="\n  ".join(filter(None, (found.text, others))))

    def remarks(
        self, attempts: Sequence[Attempt[RematRecord]], best: int, module: ir.Module, target: Target
    ) -> tuple[str, str]:
        dear = self._dear(attempts, best, self.limit_bytes(attempts, target) or 0)
        obstacle = None if dear else self._obstacle(attempts, best)
        device = DeviceView.of(module, memory_rules(target))
        stacks = loop_stacks(module, device.bytes_of)
        kept = stacks.at_peak(attempts[best].temp_bytes)
        if obstacle is RematObstacle.ONLY_SCANS and not obstacle.stands_at(kept):
            obstacle = self._unexplained(attempts, best)
        told = [] if obstacle is None or not obstacle.stands_at(kept) else [obstacle.sentence]
        if obstacle is RematObstacle.NOTHING_HELD and self.settings is not None:
            told += filter(None, [describe_left(module, target, self.settings.min_bytes)])
        told += [dear] if dear else []
        if kept.carry is not None:
            told += [f"{upper_first(kept.carry.reason)}.", f"{upper_first(kept.carry.remedy)}."]
        last = _OTHERS if attempts[best].record.candidate is not None else ""
        return "\n  ".join(told), last

    def _obstacle(
        self, attempts: Sequence[Attempt[RematRecord]], best: int
    ) -> RematObstacle | None:
        """Returns why not more is recomputed, where the plan takes more than the floor."""
        is_unmodified = attempts[best].record.is_unmodified
        if is_unmodified and least_bytes(attempts) < attempts[best].temp_bytes:
            return RematObstacle.IN_VAIN
        return attempts[0].record.obstacle or self._unexplained(attempts, best)

    def _dear(self, attempts: Sequence[Attempt[RematRecord]], best: int, limit_bytes: int) -> str:
        """Says that the least memory is not used, because of its time; empty where it is used."""
        used = attempts[best]
        least = min(
            (each for each in attempts if not each.is_refused),
            key=lambda each: (each.temp_bytes, each.record.cost),
            default=used,
        )
        step_s = least.record.step_seconds
        if not step_s or least.temp_bytes * LITTLE > used.temp_bytes:
            return ""
        what = "the program is used as it is"
        if used.record.is_unmodified:
            if not saves_enough(least.temp_bytes, used.temp_bytes, limit_bytes):
                return ""
        else:
            # The memory that was reached, counted as the budget counts.
            is_share = self.bound is not None and self.bound.percent is not None
            bytes_ = used.temp_bytes if is_share else used.step_bytes
            share = 100 * used.record.cost / step_s
            what = f"the plan that is used takes {size(bytes_)} and adds {share:.3g} %"
        share = 100 * least.record.cost / step_s
        return f"That adds {share:.3g} % to the time of a step, by the roofline; {what}."

    def _unexplained(
        self, attempts: Sequence[Attempt[RematRecord]], best: int
    ) -> RematObstacle | None:
        if attempts[best].record.candidate is not None:
            return None
        return RematObstacle.ONE_COMPILE if self.compiles == 1 else RematObstacle.NO_GAIN

    def apply(self, plan: MemoryPlan) -> None:
        plan.apply()
