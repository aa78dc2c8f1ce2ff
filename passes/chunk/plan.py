"""The plan of `chunk`: regions that run as loops, and values that are left whole."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..analysis.dimension_flow.result import made_at
from ..framework.base import ListPlan
from ..framework.feedback import PlanRecord
from ..framework.structure import Whole
from ..framework.tables import Described, Fact, Kind, Table, left_table
from ..framework.text import pluralize, size
from ..ir.ops import facts_of
from ..phase_loops.plan import LOOP_COLUMNS, LoopsPlan
from .region import DimensionRegion


@dataclass(frozen=True)
class ChunkRecord(PlanRecord):
    """A plan's prediction, and its number of chunks.

    Attributes:
      chunks: the chunks of all regions together; 0 for the unmodified program.
      of_layers: how many of them are of regions in loops of the program.
      is_least: whether no plan takes less.
    """

    chunks: Whole = 0
    is_least: bool = False
    of_layers: Whole = 0

    @property
    def is_unmodified(self) -> bool:
        return not self.chunks

    @property
    def cost(self) -> float:
        return self.chunks

    @property
    def is_final(self) -> bool:
        return self.is_least or super().is_final


_SHOWN = 8
"""The most values left that a plan lists."""


@dataclass(frozen=True)
class ChunkedRegion:
    """A region that runs as a loop.

    Attributes:
      id: the name of the region, unique in the plan.
      value_bytes: the bytes of the value that it is around, on one device.
      before_bytes: temporary memory of its block at the peak without the loop.
      after_bytes: temporary memory of its block while the loop runs.
      in_loop: whether it is in the body of a loop of the program.
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

    @property
    def description(self) -> str:
        return f"{self} in chunks"


@dataclass(frozen=True)
class ChunkPlan(ListPlan[ChunkedRegion]):
    """Regions in the order in which they were found, the one with the largest value first.

    Attributes:
      decided: the regions that run as loops.
      left: the largest values at the remaining peak, and why they are whole.
      record: the plan's prediction.
      before_bytes: temporary memory of the unmodified program.
    """

    record: ChunkRecord = field(default_factory=ChunkRecord)
    before_bytes: int = 0

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
        operations = sum(len(each.region.nodes) for each in self.decided)
        regions = pluralize(len(self.decided), "region")
        return f"{regions} of {pluralize(operations, 'operation')} run in chunks"

    def facts(self) -> tuple[Fact, ...]:
        return (
            Fact("temporaries before", self.before_bytes, Kind.BYTES),
            Fact("temporaries after", self.after_bytes, Kind.BYTES),
        )

    def tables(self) -> tuple[Table, ...]:
        regions = tuple(
            (
                region.before_bytes,
                region.after_bytes,
                Described.of(region.value, region.value_bytes),
                region.loops.cut,
                str(region.region.layout),
                len(region.region.nodes),
                region.products,
                "in a loop" if region.in_loop else None,
            )
            for region in self.decided
        )
        loops = tuple(
            (Described.of(region.value, region.value_bytes), *row)
            for region in self.decided
            for row in region.loops.rows
        )
        return (
            Table("What runs in chunks", _COLUMNS, regions),
            Table("Its loops", {"around": Kind.VALUE, **LOOP_COLUMNS}, loops),
            left_table(self.left, most=_SHOWN),
        )

    def restricted_to(self, ids: Collection[str]) -> ChunkPlan:
        """Returns the plan with these regions alone, without a prediction."""
        return ChunkPlan(tuple(region for region in self.decided if region.id in set(ids)))


_COLUMNS = {
    "whole": Kind.BYTES,
    "now": Kind.BYTES,
    "largest value": Kind.VALUE,
    "chunks": Kind.TEXT,
    "along": Kind.TEXT,
    "operations": Kind.COUNT,
    "products": Kind.COUNT,
    "where": Kind.TEXT,
}
