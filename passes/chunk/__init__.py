"""Run what makes and reads the largest values in chunks of one dimension, so that they are never
whole.

The region around a large value, such as the logits of a loss head, becomes one loop over a
dimension.

Before::

    %0 = stablehlo.dot_general %x, %w          : tensor<8192x131072xbf16>
    %1 = stablehlo.exponential %0              : tensor<8192x131072xbf16>
    %2 = stablehlo.reduce(%1) add across [1]   : tensor<8192xbf16>

After::

    %2 = stablehlo.while (8 times) {
      %c = stablehlo.dynamic_slice %x          : tensor<1024x768xbf16>
      %0 = stablehlo.dot_general %c, %w        : tensor<1024x131072xbf16>
      %1 = stablehlo.exponential %0            : tensor<1024x131072xbf16>
      %s = stablehlo.reduce(%1) add across [1] : tensor<1024xbf16>
      stablehlo.dynamic_update_slice ...       : tensor<8192xbf16>
    }

A dimension is taken only where one loop has the whole region: never the vocabulary of a softmax.
Sums over chunks are in float32 where the loop saves the memory for it, else in their own type.

Source: fused linear cross-entropy (Hsu et al., "Liger Kernel", 2024), by hand.
"""

# Modules, in the order in which a module of IR passes through them: `planner` takes values at the
# peak and tries their dimensions, and sets a plan's limit from XLA's figures of the last one;
# `region` finds the operations around a value; `memory` has the memory of a block with them in a
# loop, the types of sums, and how products fill the device; `plan` has the decisions, and the
# record of an attempt. docs/decisions/0022-loops-over-a-dimension.md has the rules and their
# reasons.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..budgeted import BudgetedPass
from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..fold_transposes import FoldTransposes
from ..framework.base import Pass
from ..framework.feedback import Attempt
from ..framework.options import Budget, Bytes, option
from ..framework.target import Target
from ..free_constants import FreeConstants
from ..ir import walk
from ..one_hot import OneHot
from ..phase_loops.write import apply_loops
from .plan import ChunkPlan, ChunkRecord
from .planner import ChunkPlanner, goal_after

SCOPE = "hloom.chunk"
"""Name-stack component of the operations that loops add."""


@dataclass(frozen=True)
class Chunk(BudgetedPass[ChunkRecord]):
    """Run what makes and reads the largest values in chunks."""

    name: ClassVar[str] = "chunk"
    summary: ClassVar[str] = "run in chunks what makes the largest values"
    example: ClassVar[str] = "chunk{chunks=8}"
    requires: ClassVar[tuple[type[Pass], ...]] = (
        DropConstraints,
        OneHot,
        FoldTransposes,
        Cse,
        FreeConstants,
    )
    once: ClassVar[bool] = True
    saves_memory: ClassVar[bool] = True
    record_type: ClassVar[type[ChunkRecord]] = ChunkRecord

    budget: Budget | None = option(
        None,
        doc="the memory that a step may take on a device, as for `fit`: the fewest chunks that "
        "hold it",
    )
    chunks: int | None = option(
        None,
        doc="iterations of each loop; otherwise the fewest that take it off the peak, as long as "
        "products still fill the device",
        minimum=2,
    )
    min_bytes: Bytes = option(
        Bytes(16 * 2**20), doc="values smaller than this are left whole", minimum=0
    )
    layers: bool = option(True, doc="also in loops of the program, such as the layers of a scan")
    compiles: int = option(
        3, doc="how often the program may be compiled to hold the budget", minimum=1
    )

    def plan_after(
        self, module: ir.Module, target: Target, attempts: Sequence[Attempt[ChunkRecord]]
    ) -> ChunkPlan:
        try:
            planner = ChunkPlanner(module, target, self.chunks, self.min_bytes, layers=self.layers)
        except walk.NoEntryError as error:
            return ChunkPlan((), record=ChunkRecord(unplanned=str(error)))
        if self.budget is None:
            return planner.plan()
        limit_bytes = self.limit_bytes(attempts, target, planner.around_bytes)
        return planner.plan(goal_after(attempts, limit_bytes, planner.before_bytes))

    def is_worthwhile(self, attempts: Sequence[Attempt[ChunkRecord]], limit_bytes: int) -> bool:
        is_held = any(attempt.temp_bytes <= limit_bytes for attempt in attempts)
        return not (is_held or attempts[-1].record.is_final)

    def apply(self, plan: ChunkPlan) -> None:
        replaced: dict[ir.Value, ir.Value] = {}
        for region in plan.decided:
            apply_loops(region.loops, SCOPE, replaced)
