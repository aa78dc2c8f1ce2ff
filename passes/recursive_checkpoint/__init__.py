"""Keep the carry of a scan every some steps, and compute the steps between again.

The forward loop keeps its carry at the borders of segments; the backward loop computes a segment
again from its border, stacks its residuals, and goes back through it.

Before::

    %3:3 = stablehlo.while(%g = %y, %s = %stack_1000) (1000 times) { ... }

After::

    // with segments=32, the backward loop of the first 31 segments
    %5:2 = stablehlo.while(%j = 0, %g = %4#1) (31 times) {
      %6 = stablehlo.dynamic_slice %borders, 30 - %j
      %7:2 = stablehlo.while(%c = %6, %s = %zeros_32) (32 times) { ... }
      %8:2 = stablehlo.while(%g = %g, %s = %7#1) (32 times) { ... }
    }

The iterations after all segments keep their residuals. Results stay the same. A loop stays whole
if its trip count is known only at run time, if it has sharding attributes for each carry, or if
its residuals follow from an effect.

Source: Griewank and Walther, Algorithm 799: revolve, 2000; Chen et al., Training deep nets with
sublinear memory cost, 2016.
"""

# Modules, in the order in which a module of IR passes through them: `again` finds what has to be
# computed again; `schedule` chooses the segments by bytes; `plan` has the decisions; `rewrite`
# writes the loops.

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.options import Bytes, option
from ..framework.target import Target
from .plan import MOST_LEVELS, RecursiveCheckpointPlan, SegmentOptions, plan_module
from .rewrite import apply_schedule


@dataclass(frozen=True)
class RecursiveCheckpoint(Pass):
    """Keep the carries of scans at borders of segments, and compute the segments again."""

    name: ClassVar[str] = "recursive-checkpoint"
    summary: ClassVar[str] = "keep a scan's carry at borders of segments alone"
    example: ClassVar[str] = "recursive-checkpoint{levels=2}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse)
    once: ClassVar[bool] = True

    segments: int | None = option(
        None,
        doc="segments of a loop, with the iterations after all of them as one; by default as many "
        "as take the least memory",
        minimum=3,
    )
    levels: int | None = option(
        None,
        doc="how often segments are cut in segments; by default 1, or as often as `share` asks for",
        minimum=1,
        maximum=MOST_LEVELS,
    )
    share: float | None = option(
        None,
        doc="the share of its stacks' bytes that a loop takes with segments, at most: as few "
        "iterations as that allows are computed again; by default the least",
        minimum=0.0,
        maximum=0.95,
    )
    residuals: float = option(
        1.0,
        doc="the share of an iteration's residuals that later passes leave in its stacks: segments "
        "are as long as is best for that",
        minimum=0.0,
        maximum=1.0,
    )
    min_trips: int = option(16, doc="loops of fewer iterations stay whole", minimum=4)
    min_bytes: Bytes = option(Bytes(2**20), doc="loops that save less stay whole", minimum=1)

    def plan(self, module: ir.Module, target: Target) -> RecursiveCheckpointPlan:
        del target
        wanted = SegmentOptions(
            self.segments, self.levels, self.share, self.residuals, self.min_trips, self.min_bytes
        )
        return plan_module(module, wanted)

    def apply(self, plan: RecursiveCheckpointPlan) -> None:
        for each in plan.decided:
            apply_schedule(each.group, each.schedule)
