"""Keep the carry of a scan every some steps, and compute the steps between again.

A scan that is differentiated stacks its residuals for all iterations. Where these are the carry
itself, e.g. the state of a simulation or the input of a checkpointed layer, no recomputation inside
of the body saves memory. This pass computes again along the loop. The forward loop keeps its carry
at the borders of segments alone. The backward loop goes through the segments: it computes a segment
again from its border, stacks its residuals, and goes back through it.

Before::

    %0:3 = stablehlo.while(%i = 0, %c = %x, %s = %zeros_1000) cond { %i < 1000 } do {
      %1 = f %c
      %2 = stablehlo.dynamic_update_slice %s, %c, %i
      stablehlo.return %i + 1, %1, %2
    }
    %3:3 = stablehlo.while(%i = 0, %g = %y, %s = %0#2) cond { %i < 1000 } do {
      %4 = stablehlo.dynamic_slice %s, 999 - %i
      ...
    }

After::

    // with segments=32
    %0:3 = stablehlo.while(%j = 0, %c = %x, %b = %zeros_31) cond { %j < 31 } do {
      %1 = stablehlo.dynamic_update_slice %b, %c, %j
      %2:2 = stablehlo.while(%i = 0, %d = %c) cond { %i < 32 } do { ... }
      stablehlo.return %j + 1, %2#1, %1
    }
    %3:3 = stablehlo.while(%i = 0, %c = %0#1, %s = %zeros_8) cond { %i < 8 } do { ... }
    %4:3 = stablehlo.while(%i = 0, %g = %y, %s = %3#2) cond { %i < 8 } do { ... }
    %5:2 = stablehlo.while(%j = 0, %g = %4#1) cond { %j < 31 } do {
      %6 = stablehlo.dynamic_slice %0#2, 30 - %j
      %7:3 = stablehlo.while(%i = 0, %c = %6, %s = %zeros_32) cond { %i < 32 } do { ... }
      %8:3 = stablehlo.while(%i = 0, %g = %g, %s = %7#2) cond { %i < 32 } do { ... }
      stablehlo.return %j + 1, %8#1
    }

T iterations with segments of L take T/L carries and L residuals, where they took T residuals. The
iterations after all segments keep their residuals, as the backward loop begins with them: they are
not computed again. So trip counts need not be a multiple, and ``kept`` is between all memory and
the least. With two levels a segment is itself cut while it is computed again, with three once more;
each level computes the forward loop once more. The number of operations does not grow with T.

The same operations run on the same values in the same order, so that the results stay the same.
Only what the residuals follow from is computed again: no output, no sum, no effect. A stack with
other readers, e.g. an output of the scan, is written by the forward loop alone. Several backward
loops each compute a segment again, and where a backward loop stacks residuals for a loop of its
own, as in a gradient of gradients, both are computed again. `remat` behind this pass decides what
the loop of a segment stacks.

A loop stays as it is if its trip count is known only at run time, if it has sharding attributes for
each carry, if its residuals follow from an operation with an effect, or if that saves less than
``min_bytes``. Loops inside of such loops stay in their bodies.

The package, in the order in which a module passes through it:

- ``again`` finds what has to be computed again; ``schedule`` chooses the segments by bytes;
- ``plan`` has the decisions; ``rewrite`` writes the loops.

Source: A. Griewank and A. Walther, Algorithm 799: revolve, ACM TOMS 26, 2000; T. Chen et al.,
Training deep nets with sublinear memory cost, 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.options import Bytes, option
from ..framework.target import Target
from .plan import RecursiveCheckpointPlan, SegmentOptions, plan_module
from .rewrite import apply_schedule

MOST_LEVELS = 3


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
        doc="segments of a loop, the iterations after all of them counted as one; not given: as "
        "many as take the least memory",
        minimum=3,
    )
    levels: int = option(
        1, doc="how often segments are cut in segments", minimum=1, maximum=MOST_LEVELS
    )
    kept: float = option(
        0.0,
        doc="the share of the iterations that keep their residuals, at the end of the loop",
        minimum=0.0,
        maximum=0.95,
    )
    min_trips: int = option(16, doc="loops of fewer iterations stay whole", minimum=4)
    min_bytes: Bytes = option(Bytes(2**20), doc="loops that save less stay whole", minimum=1)

    def plan(self, module: ir.Module, target: Target) -> RecursiveCheckpointPlan:
        del target
        wanted = SegmentOptions(
            self.segments, self.levels, self.kept, self.min_trips, self.min_bytes
        )
        return plan_module(module, wanted)

    def apply(self, plan: RecursiveCheckpointPlan) -> None:
        for each in plan.decided:
            apply_schedule(each.group, each.schedule)
