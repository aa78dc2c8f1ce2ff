"""Passes that plan again from XLA's figures of their plans, and the one loop that drives them.

A plan of such a pass is applied to a clone of the module, and the clone's memory is measured: an
attempt. A compile measures with XLA; `hloom-opt` uses the plan's prediction instead; a replay has
the figures of a dump.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from jax.extend.mlir import ir

from .base import Pass, Plan
from .options import Budget
from .structure import Figure, Whole, read
from .target import Target


@dataclass(frozen=True)
class Prediction:
    """The memory and the added work on one device that a plan predicts.

    Attributes:
      step_bytes: arguments, results and temporaries.
      temp_bytes: of that, temporaries.
      added_flops: floating-point operations that are done once more.
    """

    step_bytes: Whole
    temp_bytes: Whole
    added_flops: Figure


@dataclass(frozen=True)
class PlanRecord:
    """The data of a plan that a measured pass needs to make the next one; a pass may add fields.

    Dumps contain it as `structure` writes it.

    Attributes:
      prediction: memory and work with the plan; None where it predicts nothing.
      unplanned: why nothing could be planned, a sentence; None where something was.
      found: how the plan was found, in lines.
    """

    prediction: Prediction | None = None
    unplanned: str | None = None
    found: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def is_final(self) -> bool:
        """Whether no other plan can improve the program more than this one."""
        return self.unplanned is not None

    @property
    def is_unmodified(self) -> bool:
        """Whether the plan leaves the program as it is."""
        return True

    @property
    def cost(self) -> float:
        """Returns the time that the plan adds, or whatever grows with it."""
        return 0.0 if self.prediction is None else self.prediction.added_flops

    @property
    def modelled_temp_bytes(self) -> tuple[int, int] | None:
        """Returns temporary memory by hloom's model, of the program as it is and with the plan;
        None where the plan was made without the model."""
        return None


Record = TypeVar("Record", bound=PlanRecord)
_Record_co = TypeVar("_Record_co", bound=PlanRecord, covariant=True)


def record_in(plan: Mapping[str, object], kind: type[Record]) -> Record:
    """Returns the record in a plan's JSON. Raises StructureError where it has none of this kind."""
    return read(kind, plan.get("record"))


@runtime_checkable
class MeasuredPlan(Plan, Protocol[_Record_co]):
    """A plan of a measured pass."""

    @property
    def record(self) -> _Record_co:
        """Returns the data that later plans need, without a reference to the module."""


@dataclass(frozen=True)
class Attempt(Generic[_Record_co]):
    """A plan that was tried, and the memory of one device that the step takes with it.

    Attributes:
      record: that of the plan, before it was applied.
      step_bytes: arguments, results that are not donated arguments, and temporaries.
      temp_bytes: of that, temporaries.
      limit_bytes: the compiler's limit for a step, where it refused the program for exceeding it;
        None where it compiled the program.
      step_s: seconds of a step, foreseen from what was compiled; None where unknown.
    """

    record: _Record_co
    step_bytes: int
    temp_bytes: int
    limit_bytes: int | None = None
    step_s: float | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the compiler refused the program: there is nothing to run."""
        return self.limit_bytes is not None


def temp_limit(
    budget: Budget,
    attempts: Sequence[Attempt[Record]],
    target: Target,
    around_bytes: int | None = None,
) -> int | None:
    """Returns the bytes of temporary memory that a budget leaves; None where nothing is known to
    bound.

    A share is of the memory of the unmodified program, once an attempt has measured it. A size
    leaves the bytes that arguments and results do not take, as in the first attempt. No budget
    leaves more than the compiler allows, once it has refused an attempt.

    Args:
      budget: the bound to hold.
      attempts: the measured attempts, oldest first.
      target: the device that it runs on.
      around_bytes: arguments and results by the model, where nothing was measured yet.
    """
    if budget.percent is not None:
        whole = next((each.temp_bytes for each in attempts if each.record.is_unmodified), None)
        if whole is None:
            return None
        left = [int(whole * budget.percent / 100)]
    else:
        bound = target.usable_bytes if budget.size_bytes is None else budget.size_bytes
        if attempts:
            around_bytes = attempts[0].step_bytes - attempts[0].temp_bytes
        left = [] if bound is None or around_bytes is None else [bound - around_bytes]
    for each in attempts:
        if each.limit_bytes is not None:
            left.append(each.limit_bytes - (each.step_bytes - each.temp_bytes))
    return min(left, default=None)


AS_FAST = 1.03
"""Steps that differ by less are as fast as each other: of pairs that differed by more, 105 of 107
were foreseen in the right order, and with the plans of `fit` 227 of 229
(benchmarks/results/time_error.md)."""

NEXT_TO_NOTHING_MORE = 1.0001
"""How far above the least memory an attempt counts as equal to it: XLA's figures of plans that save
the same values differ by the placement of scalars."""


def best_of(attempts: Sequence[Attempt[Record]], limit_bytes: int | None) -> int:
    """Returns the index of the attempt to use: the fastest that holds, else the one with least
    memory; of those that take next to nothing more than that, the fastest.

    That is by the seconds of a step where they are known of all that compiled, else by the time
    that the plans add. One that the compiler refused is used only where it refused all.

    Args:
      attempts: at least one; of equal ones the oldest is used.
      limit_bytes: of temporary memory; None where nothing is known to bound.
    """
    compiled = [n for n, attempt in enumerate(attempts) if not attempt.is_refused]
    numbers = compiled or range(len(attempts))
    holding = [
        n for n in numbers if limit_bytes is not None and attempts[n].temp_bytes <= limit_bytes
    ]
    seconds = {n: attempts[n].step_s for n in numbers}
    are_known = None not in seconds.values()

    def fastest(among: Sequence[int]) -> int:
        if are_known:
            most_s = min(seconds[n] or 0.0 for n in among) * AS_FAST
            among = [n for n in among if (seconds[n] or 0.0) <= most_s]
        return min(among, key=lambda n: (attempts[n].record.cost, n))

    if holding:
        return fastest(holding)
    most_bytes = min(attempts[n].temp_bytes for n in numbers) * NEXT_TO_NOTHING_MORE
    least = [n for n in numbers if attempts[n].temp_bytes <= most_bytes]
    return fastest(least)


@dataclass(frozen=True)
class Complaint:
    """The bound that the attempt in use fails to hold.

    Attributes:
      text: one or more sentences for people.
      topic: identifies the complaint where many programs of a process have the same one: the user
        is warned of it once. Empty where each program gets a warning.
    """

    text: str
    topic: str = ""


class Planner(Protocol[Record]):
    """Makes plans for clones of one module."""

    def __call__(
        self, module: ir.Module, attempts: Sequence[Attempt[Record]], /
    ) -> MeasuredPlan[Record]:
        """Returns the plan for a clone that follows these attempts, oldest first."""


class MeasuredPass(Pass, Generic[Record]):
    """A pass that plans again from XLA's figures of its plans.

    Each plan is applied to a clone of the same module. An empty plan leaves the module as it is,
    and is an attempt as well.
    """

    record_type: ClassVar[type[PlanRecord]] = PlanRecord
    """The class of its plans' records."""

    compiles: int
    """The most attempts; a subclass declares the field with `option`."""

    @property
    def is_bounded(self) -> bool:
        """Whether the pass has a bound to hold: such a pass decides on a program's attempts."""
        return True

    @property
    def compares(self) -> bool:
        """Whether the pass compares plans without a bound to hold: it decides on a program's
        attempts where no pass is bounded, and makes its first plan where one is."""
        return False

    def plan(self, module: ir.Module, target: Target) -> MeasuredPlan[Record]:
        return self.plan_after(module, target, ())

    @abstractmethod
    def plan_after(
        self, module: ir.Module, target: Target, attempts: Sequence[Attempt[Record]]
    ) -> MeasuredPlan[Record]:
        """Returns the plan that follows these attempts, oldest first; the first plan where there
        are none.

        Reads the module and decides; never edits it.
        """

    def planner(self, origin: ir.Module, target: Target) -> Planner[Record]:
        """Makes the plans of all attempts, each for another clone of `origin`.

        Its plans are those of `plan_after`, but their common analyses are computed only once. The
        call itself computes nothing; `origin` must not be edited while the planner is in use.
        """
        return lambda module, attempts: self.plan_after(module, target, attempts)

    @abstractmethod
    def wants_another(self, attempts: Sequence[Attempt[Record]], target: Target) -> bool:
        """Whether a plan after these attempts, at least one, may be better than the best."""

    @abstractmethod
    def best(self, attempts: Sequence[Attempt[Record]], target: Target) -> int:
        """Returns the index of the attempt to use.

        One more attempt is either the best or leaves the best as it was: the others' executables
        are gone.
        """

    @abstractmethod
    def complaint(
        self,
        attempts: Sequence[Attempt[Record]],
        best: int,
        target: Target,
        module_of_best: Callable[[], ir.Module],
        unmodified: Callable[[], ir.Module],
    ) -> Complaint | None:
        """Returns the bound that the best attempt fails to hold; None where it holds.

        `module_of_best` returns the module with that attempt's plan applied, `unmodified` the one
        without a plan. Neither may be edited.
        """


@dataclass(frozen=True)
class Progress(Generic[Record]):
    """The attempts so far, oldest first, and the index of the one to use."""

    attempts: tuple[Attempt[Record], ...] = ()
    best: int = 0

    @property
    def newest_is_best(self) -> bool:
        return self.best == len(self.attempts) - 1


Measure = Callable[[tuple[Attempt[Record], ...]], Attempt[Record] | None]
"""Makes the plan that follows the attempts, and measures it; None where no plan is left to try."""


def attempts(
    step: MeasuredPass[Record], target: Target, measure: Measure[Record]
) -> Iterator[Progress[Record]]:
    """Makes attempts as long as the pass wants more; yields the progress after each."""
    now: Progress[Record] = Progress()
    while len(now.attempts) < step.compiles:
        if now.attempts and not step.wants_another(now.attempts, target):
            return
        attempt = measure(now.attempts)
        if attempt is None:
            return
        made = (*now.attempts, attempt)
        index = step.best(made, target)
        newest = len(made) - 1
        if attempt.is_refused:
            index = now.best
        elif made[now.best].is_refused:
            index = newest
        now = Progress(made, index if index == newest else now.best)
        yield now
