"""Run ragged products in loops over tiles of rows, each row meeting the matrix of its group alone.

A mixture of experts sorts its tokens by expert and multiplies them by ``jax.lax.ragged_dot``. XLA
multiplies every row by the matrix of each of the E groups, from E copies of the rows.

Before::

    %0 = chlo.ragged_dot %x, %w, %sizes : (tensor<MxK>, tensor<ExKxN>, tensor<E>) -> tensor<MxN>

After::

    %0 = stablehlo.while (M / T + E times, T rows a tile) {
      %1 = stablehlo.dynamic_slice %x, ... : tensor<TxK>
      %2 = stablehlo.dynamic_slice %w, ... : tensor<KxN>
      %3 = stablehlo.dot_general %1, %2    : tensor<TxN>
      %4 = stablehlo.dynamic_update_slice %0, %3 // rows of the group alone
    }

Gradients are rewritten, too. Trip counts are constants. On a TPU the products by rows are left to
XLA's kernel. Results differ as with any other order of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..analysis.purity import erase_dead
from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.options import option
from ..framework.target import Target
from ..ir import walk
from .plan import RaggedPlan, plan_products
from .rewrite import write_loop


@dataclass(frozen=True)
class Ragged(Pass):
    """Run ragged products in loops over tiles of rows."""

    name: ClassVar[str] = "ragged"
    summary: ClassVar[str] = "run products of rows in groups without the dense fallback"
    example: ClassVar[str] = "ragged,fit"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse)

    rows: int = option(0, doc="rows of a tile; 0: what takes the least time", minimum=0)
    loops: str = option(
        "faster",
        doc="faster: loops where they take less time than the dense product; all: everywhere",
        choices=("faster", "all"),
    )

    def plan(self, module: ir.Module, target: Target) -> RaggedPlan:
        return plan_products(
            walk.operations(module.operation), target, rows=self.rows, always=self.loops == "all"
        )

    def apply(self, plan: RaggedPlan) -> None:
        blocks = {loop.product.op.block: None for loop in plan.decided}
        # From the last one on: readers of a product are rewritten before that one is replaced.
        for loop in reversed(plan.decided):
            write_loop(loop.product, loop.tiles)
        for block in blocks:
            erase_dead(block)
