"""Store what a user's ``jax.checkpoint`` computes again, as if the checkpoint were not there.

A checkpoint saves memory by computing its function twice, the second time after an optimization
barrier or in the body of a backward loop. Where there is memory for the results of the first
computation, the second only costs time. This pass lets the backward pass read the first results.

Before::

    // forward body                                 // backward body
    %1 = stablehlo.dot_general %x, %w               %4 = stablehlo.dynamic_slice %xs, %i
    %2 = stablehlo.tanh %1                          %5 = stablehlo.dot_general %4, %w
    %3 = stablehlo.dynamic_update_slice %xs, %x     %6 = stablehlo.tanh %5
                                                    %7 = stablehlo.multiply %g, %6

After::

    // forward body                                 // backward body
    %1 = stablehlo.dot_general %x, %w               %6 = stablehlo.dynamic_slice %ts, %i
    %2 = stablehlo.tanh %1                          %7 = stablehlo.multiply %g, %6
    %3 = stablehlo.dynamic_update_slice %ts, %2

Recomputation is recognised by value numbering, not by names: equal operations of equal operands are
equal to the bit. Barriers are looked through. A slice that a backward loop reads equals the slice
that the forward loop stored in the iteration with the same index. Random bits are equal where their
key and counter are. Custom calls and collectives equal nothing, so values computed from them are
still recomputed.

In straight-line code the readers of a second computation read the first one, and the barriers
between the two are removed. In loops the forward loop stacks the values that take less time to
write and read than to recompute, by the roofline of the target; the values to stack are a minimum
cut. Stacks without readers are removed. A loop that runs again only to stack residuals, as under a
checkpoint of the whole loss, replaces the first one. Where only cheap work is recomputed nothing is
changed.

The pass needs up to the memory of the program without its checkpoints. `fit` tries it as a move
where a budget has room; ``remat{budget=…}`` after it recomputes the values that do not fit.

The package, in the order in which a module passes through it:

- ``plan`` is the program after the pass, made on a copy;
- ``merge`` merges straight-line code, and moves loops that run again;
- ``residuals`` decides which values loops store, and rewrites the loops.
"""

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
