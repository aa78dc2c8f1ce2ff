"""Passes that hold a budget of memory: the choice of the attempt, and the messages about a miss.

`framework.feedback` has the loop that drives them. A pass says when another attempt may be better,
and has its own remarks on a budget that does not hold.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from jax.extend.mlir import ir

from .analysis.autodiff import may_have_gradient
from .analysis.memory_model.peak_text import describe_peak
from .framework.feedback import Attempt, Complaint, MeasuredPass, Record, best_of, temp_limit
from .framework.options import Budget
from .framework.target import Target
from .framework.text import pluralize, size
from .ir import walk
from .ir.ops import facts_of

INDISTINCT = 1.02
"""Memory that differs by less than this factor is equal to the model."""

_UNMEASURED = (
    "XLA does not tell what memory the program takes here, so that it is not known whether the "
    "budget holds."
)


class BudgetedPass(MeasuredPass[Record]):
    """A pass that holds a budget, or follows its other options without one."""

    budget: Budget | None
    """The budget to hold; a subclass declares it with `option`."""

    @property
    def bound(self) -> Budget | None:
        """Returns the budget to hold; None where other options decide."""
        return self.budget

    @property
    def is_bounded(self) -> bool:
        return self.bound is not None

    def limit_bytes(
        self, attempts: Sequence[Attempt[Record]], target: Target, around_bytes: int | None = None
    ) -> int | None:
        """Returns the bytes of temporary memory that the budget leaves; None if unknown.

        ``around_bytes`` are arguments and results by the model, where nothing was measured yet.
        """
        if self.bound is None:
            return None
        return temp_limit(self.bound, attempts, target, around_bytes)

    def wants_another(self, attempts: Sequence[Attempt[Record]], target: Target) -> bool:
        limit_bytes = self.limit_bytes(attempts, target)
        if limit_bytes is None or self._is_nearly_held(attempts, limit_bytes):
            return False
        return self.is_worthwhile(attempts, limit_bytes)

    def _is_nearly_held(self, attempts: Sequence[Attempt[Record]], limit_bytes: int) -> bool:
        """Whether a share is missed by next to nothing."""
        tolerance = 1.0 if self.bound is None else self.bound.tolerance
        return limit_bytes < least_bytes(attempts) <= limit_bytes * tolerance

    @abstractmethod
    def is_worthwhile(self, attempts: Sequence[Attempt[Record]], limit_bytes: int) -> bool:
        """Whether one more attempt may hold the limit, or hold it at less cost."""

    def best(self, attempts: Sequence[Attempt[Record]], target: Target) -> int:
        if self.bound is None:
            return len(attempts) - 1
        return best_of(attempts, self.limit_bytes(attempts, target))

    def complaint(
        self,
        attempts: Sequence[Attempt[Record]],
        best: int,
        target: Target,
        module_of_best: Callable[[], ir.Module],
        unmodified: Callable[[], ir.Module],
    ) -> Complaint | None:
        budget = self.bound
        if budget is None:
            return None
        if not attempts:
            return Complaint(_UNMEASURED)
        attempt = attempts[best]
        if why := attempt.record.unplanned:
            return Complaint(f"{why}.")
        if budget.least:
            return None
        limit_bytes = self.limit_bytes(attempts, target)
        if limit_bytes is None:
            return Complaint(
                f"the memory of {target.name} is not known, so that nothing was done to fit it."
            )
        if attempt.temp_bytes <= limit_bytes or self._is_nearly_held([attempt], limit_bytes):
            return None
        module, percent = module_of_best(), budget.percent
        if percent is not None and not may_have_gradient(module):
            return None
        # Programs that initialize or evaluate something small: one message for many in a process.
        is_aside = not any(facts_of(op.name).is_product for op in walk.operations(module.operation))
        around = 0 if percent is not None else attempt.step_bytes - attempt.temp_bytes
        floor = describe_floor(percent, least_bytes(attempts) + around, limit_bytes + around)
        predicted = attempt.record.prediction
        is_planned_only = predicted is not None and predicted.temp_bytes == attempt.temp_bytes
        xla_bytes = None if is_planned_only else attempt.temp_bytes
        peak = describe_peak(module, target, arguments=percent is None, xla_bytes=xla_bytes)
        first, last = self.remarks(attempts, best, module, target)
        lines = filter(None, (floor, first, peak, last))
        return Complaint("\n  ".join(lines), "no-product" if is_aside else "")

    def remarks(
        self, attempts: Sequence[Attempt[Record]], best: int, module: ir.Module, target: Target
    ) -> tuple[str, str]:
        """Returns the messages to the user about a missed budget: after the floor, and at the end.

        ``module`` is the module after the best attempt.
        """
        return "", ""


def least_bytes(attempts: Sequence[Attempt[Record]]) -> int:
    """Returns the least temporary memory of attempts that were compiled; of all, if none was."""
    compiled = [each.temp_bytes for each in attempts if not each.is_refused]
    return min(compiled or (each.temp_bytes for each in attempts))


def describe_floor(percent: float | None, least_bytes: int, budget_bytes: int) -> str:
    """Returns a sentence for the user whose budget cannot be met.

    Args:
      percent: the budget as a share of the program's temporary memory; None if it is a bound on the
        memory of the step.
      least_bytes: the least memory that was reached.
    """
    what, bound = "the memory of the step", size(budget_bytes)
    if percent is not None:
        what = "temporary memory"
        bound += f", {percent:g} % of what the program takes without the pass"
    text = f"{what} cannot be held to {bound}; the least that was reached is {size(least_bytes)}"
    if size(least_bytes) == size(budget_bytes):
        text += f", {pluralize(least_bytes - budget_bytes, 'byte')} more"
    return f"{text}."
