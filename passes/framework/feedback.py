"""Passes that plan again from what XLA made of their plans, and the one loop that drives them.

A plan of such a pass goes on a clone of the module, and what that takes is measured: an attempt. A
compile measures with XLA; `hloom-opt` takes what the plan predicts for it; a replay has the figures
of a dump.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from jax.extend.mlir import ir

from .base import Pass, Plan
from .options import Budget
from .structure import Figure, Whole, read
from .target import Target


@dataclass(frozen=True)
class Prediction:
    """What a plan is to give on one device.

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
    """What a measured pass needs of a plan to make the next one; a pass may keep more of it.

    Dumps have it as `structure` writes it.

    Attributes:
      prediction: what the plan is to give; None where it predicts nothing.
      unplanned: why nothing could be planned, a sentence; None where something was.
    """

    prediction: Prediction | None = None
    unplanned: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether no plan can do more for the program than this one."""
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
        """Temporary memory by hloom's model, of the program as it is and with the plan; None where
        the plan was made without that."""
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
        """What the plans after it need of it, without a hold on the module."""


@dataclass(frozen=True)
class Attempt(Generic[_Record_co]):
    """A plan that was tried, and what the step takes of one device with it.

    Attributes:
      record: of the plan, before it was applied.
      step_bytes: arguments, results that are not arguments given back, and temporaries.
      temp_bytes: of that, temporaries.
      limit_bytes: what the compiler allows a step, where it refused the program for taking more;
        None where it compiled it.
    """

    record: _Record_co
    step_bytes: int
    temp_bytes: int
    limit_bytes: int | None = None

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

    A share is of what the program as it is takes, once an attempt was that. Of a size there is
    left what the step is not given and does not return, as in the first attempt. No budget leaves
    more than the compiler allows, once it has refused an attempt.

    Args:
      budget: what is to hold.
      attempts: what was measured, oldest first.
      target: what it runs on.
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


_NEXT_TO_NOTHING_MORE = 1.0001
"""How far attempts may be from the least memory to be taken for it: XLA's figures of plans that
keep the same values differ by the places of scalars."""


def best_of(attempts: Sequence[Attempt[Record]], limit_bytes: int | None) -> int:
    """Returns the index of the attempt to use: the cheapest that holds, else the one with least
    memory; of those that take next to nothing more than that, the cheapest.

    One that the compiler refused is used only where it refused all.

    Args:
      attempts: at least one; of those that are alike the oldest is used.
      limit_bytes: of temporary memory; None where nothing is known to bound.
    """
    compiled = [n for n, attempt in enumerate(attempts) if not attempt.is_refused]
    numbers = compiled or range(len(attempts))
    holding = [
        n for n in numbers if limit_bytes is not None and attempts[n].temp_bytes <= limit_bytes
    ]
    if holding:
        return min(holding, key=lambda n: (attempts[n].record.cost, n))
    most_bytes = min(attempts[n].temp_bytes for n in numbers) * _NEXT_TO_NOTHING_MORE
    least = [n for n in numbers if attempts[n].temp_bytes <= most_bytes]
    return min(least, key=lambda n: (attempts[n].record.cost, n))


@dataclass(frozen=True)
class Complaint:
    """What the attempt that is used fails to hold.

    Attributes:
      text: one or more sentences for people.
      topic: where many programs of a process have the same complaint, which of these it is: the
        user is warned of one of them. Empty where each is worth a warning.
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
    """A pass that plans again from what XLA made of its plans.

    Each plan goes on a clone of the same module. A plan that is empty means the module as it is,
    and that is an attempt as well.
    """

    record_type: ClassVar[type[PlanRecord]] = PlanRecord
    """The class of its plans' records."""

    compiles: int
    """Attempts at most; a subclass declares it with `option`."""

    @property
    def is_bounded(self) -> bool:
        """Whether it is asked to hold something: such a pass decides on a program's attempts."""
        return True

    @property
    def compares(self) -> bool:
        """Whether it has plans to compare although it has nothing to hold: it decides on a
        program's attempts where no pass is bounded, and makes its first plan where one is."""
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

        As `plan_after`, but what the plans have in common need be found out only once. Does
        nothing yet; nobody edits `origin` as long as the planner is in use.
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
    ) -> Complaint | None:
        """What the best attempt fails to hold; None where it holds.

        `module_of_best` gives what that attempt's plan made of the module, for nobody to edit.
        """


@dataclass(frozen=True)
class Progress(Generic[Record]):
    """The attempts until now, oldest first, and the index of the one to use."""

    attempts: tuple[Attempt[Record], ...] = ()
    best: int = 0

    @property
    def newest_is_best(self) -> bool:
        return self.best == len(self.attempts) - 1


Measure = Callable[[tuple[Attempt[Record], ...]], Attempt[Record] | None]
"""Makes the plan that follows the attempts, and measures it; None where there is no more to try."""


def attempts(
    step: MeasuredPass[Record], target: Target, measure: Measure[Record]
) -> Iterator[Progress[Record]]:
    """Makes attempts as long as the pass wants more; gives the progress after each."""
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
