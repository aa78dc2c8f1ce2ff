"""The record of `accumulate` of a plan for a budget, for later plans and for dumps."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..framework.feedback import PlanRecord
from ..framework.structure import Whole


class Once(enum.IntEnum):
    """The work that a step whose parameters are sharded along with its batch does once a step, not
    once a microbatch. Each member takes more memory than those before it, and sends less."""

    NOTHING = 0
    GATHERS = 1
    """The step gathers its parameters before the loop."""
    SUMS = 2
    """In addition each device adds up whole gradients, which are reduced after the loop."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class AccumulateRecord(PlanRecord):
    """The record of a plan of `accumulate`.

    Attributes:
      microbatches: the number into which the batch is divided; 1 for the unmodified program.
      possible: the numbers that a budget chooses from, ascending; empty without a budget.
      modelled: the modelled temporary memory by number, of the modelled numbers, with no work done
        once.
      once: the work that is done once a step.
      added: the work that may be done once, and the memory that this adds, ascending; empty where
        no number is chosen.
    """

    microbatches: Whole = 1
    possible: tuple[Whole, ...] = ()
    modelled: tuple[tuple[Whole, Whole], ...] = ()
    once: Once = Once.NOTHING
    added: tuple[tuple[Once, Whole], ...] = ()

    @property
    def is_unmodified(self) -> bool:
        return self.microbatches == 1

    @property
    def cost(self) -> float:
        """Returns the cost: fewer microbatches are better; of equals more work done once is."""
        return self.microbatches - self.once / len(Once)
