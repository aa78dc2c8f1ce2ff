"""Access to one element of each row without indices, e.g. a loss's access to its labels.

The gradient of ``log_probabilities[arange(T), labels]`` is a scatter of T numbers into zeros of
[T, V], which XLA writes in float32. The pass writes a select, which XLA computes in its readers.

Before::

    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<TxVxf32>
    %0 = "stablehlo.scatter"(%zeros, %labels, %updates) ... one element for each of T rows

After::

    %positions = stablehlo.iota dim = 0 : tensor<Vxi32>
    %chosen = stablehlo.compare EQ, %positions, %labels ... both broadcast to TxV
    %0 = stablehlo.select %chosen, %updates, %zeros ... both broadcast to TxV

A scatter into a value in memory stays. Indices that number the rows (``arange(T)``) become batching
dimensions, which saves an all-reduce on a sharded batch. The results are the same to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.options import Bytes, option
from ..framework.target import Target
from ..ir import walk
from .plan import OneHotPlan, RowForm, plan_accesses
from .rewrite import batch_rows, select_in_rows


@dataclass(frozen=True)
class OneHot(Pass):
    """Write gathers and scatters of one element a row as selects, or batched."""

    name: ClassVar[str] = "one-hot"
    summary: ClassVar[str] = "write scatters of one element a row as selects"
    example: ClassVar[str] = "one-hot{min_bytes=1MiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints,)

    min_bytes: Bytes = option(Bytes(0), doc="rows that take less in all stay")
    reads: str = option(
        "gather",
        doc="gather: what is read of rows is gathered; select: it is the sum over a select",
        choices=("gather", "select"),
    )

    def plan(self, module: ir.Module, target: Target) -> OneHotPlan:
        return plan_accesses(
            walk.operations(module.operation),
            min_bytes=self.min_bytes,
            select_reads=self.reads == "select",
        )

    def apply(self, plan: OneHotPlan) -> None:
        for access in plan.decided:
            if access.form is RowForm.SELECT:
                select_in_rows(access.element)
            else:
                batch_rows(access.element)
