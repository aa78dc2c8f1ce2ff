"""The plan of `chunk`: regions that run as loops, and values that are left as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax.extend.mlir import ir

from ..analysis.dimension_flow.result import made_at
from ..framework.base import Decision
from ..framework.feedback import PlanRecord, prediction_of, whole_number
from ..framework.text import pluralize, size
from ..ir.locations import operation_name, source_of
from ..ir.ops import facts_of
from ..phase_loops.plan import LoopsPlan
from .region import DimensionRegion


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
    def is_unmodified(self) -> bool:
        return not self.chunks

    @property
    def cost(self) -> float:
        return self.chunks

    @property
    def is_final(self) -> bool:
        return self.is_least or super().is_final

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"chunks": self.chunks, "is_least": self.is_least}

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> ChunkRecord:
        chunks = whole_number(plan["chunks"])
        return cls(prediction_of(plan), plan.get("unplanned"), chunks, bool(plan["is_least"]))


_SHOWN = 8
"""Values left that a plan lists."""


@dataclass(frozen=True)
class ChunkedRegion:
    """A region that runs as a loop.

    Attributes:
      id: tells it from the plan's others.
      region: the region.
      loops: its loop.
      value_bytes: of the value that it is around, on one device.
      before_bytes: what is in temporary memory of its block at the peak without the loop.
      after_bytes: what is while the loop runs.
      in_loop: whether it stands in the body of a loop of the program.
    """

    id: str
    region: DimensionRegion
    loops: LoopsPlan
    value_bytes: int
    before_bytes: int
    after_bytes: int
    in_loop: bool

    @property
    def value(self) -> ir.Value:
        return self.region.flow.program.values[self.region.value]

    @property
    def products(self) -> int:
        return sum(facts_of(node.op.name).is_product for node in self.region.nodes)

    def __str__(self) -> str:
        inside = ", in a loop of the program" if self.in_loop else ""
        operations = pluralize(len(self.region.nodes), "operation")
        chunks = pluralize(self.loops.schedule.chunks, "chunk")
        return (
            f"{operations} around {made_at(self.value)}{inside}: {chunks} of {self.region.layout} "
            f"of {self.loops.flow.size}; {size(self.before_bytes)} become {size(self.after_bytes)}"
        )

    def lines(self) -> Iterator[str]:
        yield str(self)
        for found in self.loops.exits:
            yield f"  leaves the loop: {found}"

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "name": operation_name(self.value.location),
            **source_of(self.value.location).to_json(),
            "type": str(self.value.type),
            "bytes": self.value_bytes,
            "in_loop": self.in_loop,
            "dimension": str(self.region.layout),
            "operations": len(self.region.nodes),
            "products": self.products,
            "bytes_before": self.before_bytes,
            "bytes_after": self.after_bytes,
            **self.loops.to_json(),
        }


@dataclass(frozen=True)
class LeftValue:
    """A value at the peak that is left whole.

    Attributes:
      value: the value.
      bytes: its bytes on one device.
      reasons: for each dimension that was tried, why.
    """

    value: ir.Value
    bytes: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{size(self.bytes)} in {made_at(self.value)}: {'; '.join(self.reasons)}"

    def to_json(self) -> dict[str, object]:
        return {
            "name": operation_name(self.value.location),
            **source_of(self.value.location).to_json(),
            "type": str(self.value.type),
            "bytes": self.bytes,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class ChunkPlan:
    """Regions in the order in which they were found, the one with the largest value first.

    Attributes:
      regions: those that run as loops.
      left: the largest values at the peak that is left, and why they are whole.
      record: what the plan predicts.
      before_bytes: temporary memory of the program as it is.
    """

    regions: tuple[ChunkedRegion, ...]
    left: tuple[LeftValue, ...] = ()
    record: ChunkRecord = field(default_factory=ChunkRecord)
    before_bytes: int = 0

    @property
    def empty(self) -> bool:
        return not self.regions

    @property
    def after_bytes(self) -> int:
        prediction = self.record.prediction
        return self.before_bytes if prediction is None else prediction.temp_bytes

    def summary(self) -> str:
        if self.empty:
            because = self.record.unplanned or (str(self.left[0]) if self.left else "")
            return f"nothing to run in chunks{f': {because}' if because else ''}"
        return f"{self.effect()}, {size(self.before_bytes)} become {size(self.after_bytes)}"

    def effect(self) -> str:
        operations = sum(len(each.region.nodes) for each in self.regions)
        regions = pluralize(len(self.regions), "region")
        return f"{regions} of {pluralize(operations, 'operation')} run in chunks"

    def lines(self) -> Iterator[str]:
        for region in self.regions:
            yield from region.lines()
        yield from (f"left: {value}" for value in self.left)

    def to_json(self) -> dict[str, object]:
        return {
            "temp_bytes_before": self.before_bytes,
            "regions": [region.to_json() for region in self.regions],
            "left": [value.to_json() for value in self.left[:_SHOWN]],
        } | self.record.to_json()

    def decisions(self) -> tuple[Decision, ...]:
        return tuple(Decision(region.id, f"{region} in chunks") for region in self.regions)

    def restricted_to(self, ids: Collection[str]) -> ChunkPlan:
        """The plan with these regions alone, without a prediction."""
        return ChunkPlan(tuple(region for region in self.regions if region.id in set(ids)))
