"""What a measured `chunk` remembers of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..framework.feedback import PlanRecord, prediction_of, whole_number


@dataclass(frozen=True)
class ChunkRecord(PlanRecord):
    """A plan's prediction, and how much it cuts.

    Attributes:
      chunks: of all regions together; 0 where the program is left as it is.
      is_least: whether no plan takes less.
    """

    chunks: int = 0
    is_least: bool = False

    @property
    def is_final(self) -> bool:
        return self.is_least or super().is_final

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"chunks": self.chunks, "is_least": self.is_least}

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> ChunkRecord:
        chunks = whole_number(plan["chunks"])
        return cls(prediction_of(plan), plan.get("unplanned"), chunks, bool(plan["is_least"]))
