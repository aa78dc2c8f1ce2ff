"""What `accumulate` keeps of a plan for a budget: for the plans after it, and for dumps."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..framework.feedback import PlanRecord, prediction_of, whole_number


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

    microbatches: int = 1
    possible: tuple[int, ...] = ()
    modelled: tuple[tuple[int, int], ...] = ()
    once: Once = Once.NOTHING
    added: tuple[tuple[Once, int], ...] = ()

    @property
    def is_unmodified(self) -> bool:
        return self.microbatches == 1

    @property
    def cost(self) -> float:
        """The fewer microbatches the less; of equals what does more once."""
        return self.microbatches - self.once / len(Once)

    def to_json(self) -> dict[str, object]:
        found = super().to_json() | {"microbatches": self.microbatches}
        if self.once:
            found["once"] = str(self.once)
        if self.added:
            found["added_temp_bytes"] = {str(once): size for once, size in self.added}
        if not self.possible:
            return found
        return found | {
            "possible": list(self.possible),
            "modelled_temp_bytes": {str(number): size for number, size in self.modelled},
        }

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> AccumulateRecord:
        modelled = plan.get("modelled_temp_bytes", {})
        added = plan.get("added_temp_bytes", {})
        for sizes in (modelled, added):
            if not isinstance(sizes, Mapping):
                raise TypeError(f"{sizes!r} has no sizes by number")
        return cls(
            prediction=prediction_of(plan),
            unplanned=plan.get("unplanned"),
            microbatches=whole_number(plan["microbatches"]),
            possible=tuple(map(whole_number, plan.get("possible", ()))),
            modelled=tuple((int(number), whole_number(size)) for number, size in modelled.items()),
            once=_once(plan.get("once", str(Once.NOTHING))),
            added=tuple((_once(once), whole_number(size)) for once, size in added.items()),
        )


def _once(name: Any) -> Once:
    for each in Once:
        if str(each) == name:
            return each
    raise ValueError(f"{name!r} is nothing that is done once")
