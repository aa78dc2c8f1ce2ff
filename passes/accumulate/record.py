"""What `accumulate` keeps of a plan for a budget: for the plans after it, and for dumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..framework.feedback import PlanRecord, prediction_of, whole_number


@dataclass(frozen=True)
class AccumulateRecord(PlanRecord):
    """The record of a plan of `accumulate`.

    Attributes:
      microbatches: into how many the batch is divided; 1 for the program as it is.
      possible: the numbers that a budget chooses from, ascending; empty without a budget.
      modelled: by number the temporary memory by the model, of those that were modelled.
    """

    microbatches: int = 1
    possible: tuple[int, ...] = ()
    modelled: tuple[tuple[int, int], ...] = ()

    @property
    def is_unmodified(self) -> bool:
        return self.microbatches == 1

    @property
    def cost(self) -> float:
        return self.microbatches

    def to_json(self) -> dict[str, object]:
        found = super().to_json() | {"microbatches": self.microbatches}
        if not self.possible:
            return found
        return found | {
            "possible": list(self.possible),
            "modelled_temp_bytes": {str(number): size for number, size in self.modelled},
        }

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> AccumulateRecord:
        modelled = plan.get("modelled_temp_bytes", {})
        if not isinstance(modelled, Mapping):
            raise TypeError(f"{modelled!r} has no sizes by number")
        return cls(
            prediction=prediction_of(plan),
            unplanned=plan.get("unplanned"),
            microbatches=whole_number(plan["microbatches"]),
            possible=tuple(map(whole_number, plan.get("possible", ()))),
            modelled=tuple((int(number), whole_number(size)) for number, size in modelled.items()),
        )
