"""Store what a user's ``jax.checkpoint`` computes again, as if the checkpoint were not there.

Where there is memory for the results of the first computation, the backward pass reads these.

Before::

    // forward body                                 // backward body
    %1 = stablehlo.dot_general %x, %w               %4 = stablehlo.dynamic_slice %xs, %i
    %2 = stablehlo.tanh %1                          %5 = stablehlo.dot_general %4, %w
    %3 = stablehlo.dynamic_update_slice %xs, %x     %6 = stablehlo.tanh %5

After::

    // forward body                                 // backward body
    %1 = stablehlo.dot_general %x, %w               %6 = stablehlo.dynamic_slice %ts, %i
    %2 = stablehlo.tanh %1
    %3 = stablehlo.dynamic_update_slice %ts, %2

Recomputation is recognised by value numbering; values computed from custom calls and collectives
are still recomputed. Loops stack what takes less time to write and read than to recompute, by the
roofline of the target. The step needs up to the memory of the program without its checkpoints;
``remat{budget=…}`` behind the pass recomputes what does not fit.
"""

# Modules, in the order in which a module of IR passes through them: `plan` is the program after the
# pass, made on a copy; `merge` merges straight-line code, and moves loops that run again;
# `residuals` decides which values loops store, by a minimum cut, and rewrites the loops.

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.target import Target
from ..free_constants import FreeConstants
from ..ir.clone import replace_body
from .plan import UndoCheckpointPlan, plan_undo


@dataclass(frozen=True)
class UndoCheckpoint(Pass):
    """Store what a checkpoint computes again."""

    name: ClassVar[str] = "undo-checkpoint"
    summary: ClassVar[str] = "store what a user's jax.checkpoint computes again"
    example: ClassVar[str] = "undo-checkpoint,remat{budget=60GiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse, FreeConstants)
    once: ClassVar[bool] = True

    def plan(self, module: ir.Module, target: Target) -> UndoCheckpointPlan:
        return plan_undo(module, target)

    def apply(self, plan: UndoCheckpointPlan) -> None:
        if plan.undone is not None:
            replace_body(plan.module, plan.undone)
