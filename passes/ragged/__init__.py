"""Run ragged products in loops over tiles of rows, each row meeting the matrix of its group alone.

A mixture of experts sorts its tokens by expert and multiplies them by `jax.lax.ragged_dot`. XLA
multiplies every row by the matrix of every group, and drops the excess: with E experts E times the
work, and the rows are copied E times first.

Before::

    %0 = chlo.ragged_dot %x, %w, %sizes : (tensor<MxK>, tensor<ExKxN>, tensor<E>) -> tensor<MxN>

After::

    %tiles = which group and rows each tile has, from %sizes
    %0 = stablehlo.while (M / T + E times, T rows a tile) {
      %1 = stablehlo.dynamic_slice %x, ... : tensor<TxK>
      %2 = stablehlo.dynamic_slice %w, ... : tensor<KxN>
      %3 = stablehlo.dot_general %1, %2    : tensor<TxN>
      %4 = stablehlo.dynamic_update_slice %0, %3 // rows of the group alone
    }

The pass rewrites gradients too: that of the rows is such a product, that of the weights sums over
the rows of each group, in float32. Where it is added to a sum of its type, the loop begins with
that. In a batch with sizes for each place, each place has tiles of its own. A group of no rows
takes no tile, rows after the last group stay zeros. The loop runs as often as the worst sizes need,
at most E times more than there are full tiles. So its trip count is a constant: the host does not
wait, and graphs can hold it.

The roofline of the target decides how many rows a tile has, and whether a loop is faster than the
dense product. On a TPU the products by rows are left to XLA's kernel for them. Dense products that
JAX itself writes for CPUs are found by their masks.

Results differ as with any other order of a sum. A matrix that is not finite affects the rows of its
own group alone; in a dense product it makes all rows NaN.
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
            walk.operations(module.operation),
            target,
            rows=self.rows,
            always=self.loops == "all",
        )

    def apply(self, plan: RaggedPlan) -> None:
        blocks = {loop.product.op.block: None for loop in plan.decided}
        # From the last one on: readers of a product are rewritten before that one is replaced.
        for loop in reversed(plan.decided):
            write_loop(loop.product, loop.tiles)
        for block in blocks:
            erase_dead(block)
