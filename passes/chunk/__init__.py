"""Run what makes and reads the largest values in chunks of one dimension, so that they are never
whole.

A language model's loss head makes logits of [tokens, vocabulary], several times over with their
gradients, and only sums and small values leave it. So does attention by query, or an MLP by
position, inside a layer that is recomputed. Around the largest values at the peak this pass finds
the region that one loop over a dimension can hold, and writes it as that loop: the loss, its
gradient and the products of both gradients, each chunk of logits computed once.

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

A dimension is taken only if one loop has all of the region: never the vocabulary of a softmax, nor
the keys of attention, whose maximum and sum would each take a loop of their own. Of several, one
that is not sharded over devices is taken before one that is, then the one that leaves least memory,
then the first. Values that cannot be cut stay whole, and the plan says why.

Without `chunks` a loop has the fewest that take it off the program's peak, and no more than keep
matrix products as fast as whole ones by the cost model. With a budget it has the fewest that hold
it, and XLA's figure for the compiled plan corrects the model.

Sums over chunks are added up in float32 where that takes no more memory than the loop saves, or
where the program converts them to float32 anyway; else in their own type.

The package, in the order in which a module passes through it:

- ``planner`` takes values at the peak, and tries their dimensions; ``region`` finds the operations
  around a value, ``memory`` the memory of a block with them in a loop, the types of sums, and how
  products fill the device; it also sets the next plan's limit from XLA's figures of the last;
- ``plan`` has the plan's decisions, and the record of an attempt.

Source: fused linear cross-entropy (Hsu et al., "Liger Kernel", 2024) does this by hand to one loss;
`docs/decisions/0022-loops-over-a-dimension.md` has the rules and their reasons.
"""

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
        doc="the memory that a step may take on a device: bytes for arguments, results and all "
        "temporaries; a share of the temporaries that the program takes without the pass; fit, for "
        "what the device has; or min, for the least that can be reached. The fewest chunks that "
        "hold it",
    )
    chunks: int | None = option(
        None,
        doc="iterations of each loop; otherwise the fewest that take it off the program's peak, "
        "as long as products still fill the device",
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
