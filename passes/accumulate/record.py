"""What `accumulate` keeps of a plan for a budget: for the plans after it, and for dumps."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..framework.feedback import PlanRecord
from ..framework.structure import Whole


class Once(enum.IntEnum):
    """What a step whose parameters are sharded along with its batch does once a step, and not once
    a microbatch. Each takes more memory than those before it, and sends less."""

    NOTHING = 0
    GATHERS = 1
    """Its parameters are gathered before the loop."""
    SUMS = 2
    """And each device adds up whole gradients, which are reduced after the loop."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class AccumulateRecord(PlanRecord):
    """The record of a plan of `accumulate`.

    Attributes:
      microbatches: into how many the batch is divided; 1 for the program as it is.
      possible: the numbers that a budget chooses from, ascending; empty without a budget.
      modelled: by number the temporary memory by the model, of those that were modelled, with
        nothing done once.
      once: what is done once a step.
      added: what may be done once, and the memory that this adds, ascending; empty where nothing
        is chosen.
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
        """The fewer microbatches the less; of equals what does more once."""
        return self.microbatches - self.once / len(Once)
