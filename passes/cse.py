"""Merge equal cheap operations of a block, so that an analysis counts each value once.

JAX's autodiff computes the same value several times, e.g. ``x - mean`` for the value and for its
derivative. XLA merges them later; an analysis before it would count both.

Before::

    %0 = stablehlo.subtract %x, %m : tensor<4xf32>
    %1 = stablehlo.subtract %x, %m : tensor<4xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<4xf32>

After::

    %0 = stablehlo.subtract %x, %m : tensor<4xf32>
    %2 = stablehlo.multiply %0, %0 : tensor<4xf32>

Merged are elementwise operations, constants, data movement, reductions and sharding constraints in
one block. XLA merges equal matrix products itself.
"""

# MLIR's own `cse` also merges optimization barriers, which undoes a user's jax.checkpoint, and
# replaces a constant of a loop body by one outside, which XLA then carries through the loop.

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from .analysis.purity import is_cheap
from .analysis.value_numbers import operation_key
from .framework.base import Pass, PlanBase
from .framework.tables import Fact
from .framework.target import Target
from .framework.text import pluralize
from .ir import walk
from .ir.erase import replace
from .ir.shardings import CONSTRAINT


@dataclass(frozen=True)
class CsePlan(PlanBase):
    """Pairs of a duplicate operation and the earlier one that replaces it."""

    merged: tuple[tuple[ir.Operation, ir.Operation], ...]

    @property
    def empty(self) -> bool:
        return not self.merged

    def summary(self) -> str:
        return f"{pluralize(len(self.merged), 'duplicate operation')} merged"

    def facts(self) -> tuple[Fact, ...]:
        return (Fact("duplicate operations merged", len(self.merged)),)


@dataclass(frozen=True)
class Cse(Pass):
    """Replace an operation by an equal earlier one of the same block."""

    name: ClassVar[str] = "cse"
    summary: ClassVar[str] = "merge equal cheap operations, never matrix products"
    example: ClassVar[str] = "inline,cse"
    preparation: ClassVar[bool] = True

    def plan(self, module: ir.Module, target: Target) -> CsePlan:
        merged: list[tuple[ir.Operation, ir.Operation]] = []
        canonical: dict[ir.Value, ir.Value] = {}
        for block in walk.code_blocks(module.operation):
            _plan_block(block, merged, canonical)
        return CsePlan(tuple(merged))

    def apply(self, plan: CsePlan) -> None:
        for duplicate, first in plan.merged:
            replace(duplicate, first.results)


def _plan_block(
    block: ir.Block,
    merged: list[tuple[ir.Operation, ir.Operation]],
    canonical: dict[ir.Value, ir.Value],
) -> None:
    """Adds the block's duplicates to ``merged``, and the replacements of their results to
    ``canonical``."""
    first_alike: dict[Hashable, ir.Operation] = {}
    first_equal: dict[Hashable, dict[Hashable, ir.Operation]] = {}
    for view in block.operations:
        op = view.operation
        # Most operations share name and operands with no other one: this comparison is quick.
        alike = op.name, tuple([canonical.get(operand, operand) for operand in op.operands])
        first = first_alike.setdefault(alike, op)
        if first is op or not _may_merge(op):
            continue
        equal = first_equal.get(alike)
        if equal is None:
            equal = first_equal[alike] = {operation_key(first): first} if _may_merge(first) else {}
        first = equal.setdefault(operation_key(op), op)
        if first is not op:
            merged.append((op, first))
            canonical.update(zip(op.results, first.results, strict=True))


def _may_merge(op: ir.Operation) -> bool:
    """Whether the operation is cheap, or a sharding constraint.

    A sharding constraint may become a collective, which need not run twice.
    """
    return is_cheap(op) or op.name == CONSTRAINT
