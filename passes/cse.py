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
one block. XLA merges equal matrix products itself. A slice that lies in one operand of the
concatenation or of the padded value that it cuts is one of that operand, as in XLA.
"""

# MLIR's own `cse` also merges optimization barriers, which undoes a user's jax.checkpoint, and
# replaces a constant of a loop body by one outside, which XLA then carries through the loop.

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .analysis.direct_reads import JOINING, DirectRead, direct_read
from .analysis.purity import is_cheap
from .analysis.value_numbers import operation_key
from .framework.base import Pass, PlanBase
from .framework.tables import Fact
from .framework.target import Target
from .framework.text import pluralize
from .ir import walk
from .ir.erase import erase, replace
from .ir.shardings import CONSTRAINT
from .ir.values import defining_op, is_read


@dataclass(frozen=True)
class CsePlan(PlanBase):
    """Operations that others replace.

    Attributes:
      merged: pairs of a duplicate operation and the earlier one that replaces it.
      direct: slices, with what each of them reads of an operand's operand.
    """

    merged: tuple[tuple[ir.Operation, ir.Operation], ...] = ()
    direct: tuple[tuple[ir.Operation, DirectRead], ...] = ()

    @property
    def empty(self) -> bool:
        return not self.merged and not self.direct

    def summary(self) -> str:
        merged = f"{pluralize(len(self.merged), 'duplicate operation')} merged"
        if not self.direct:
            return merged
        return f"{merged}, {pluralize(len(self.direct), 'slice')} read from one operand"

    def facts(self) -> tuple[Fact, ...]:
        direct = [Fact("slices read from one operand", len(self.direct))] if self.direct else []
        return (Fact("duplicate operations merged", len(self.merged)), *direct)


@dataclass(frozen=True)
class Cse(Pass):
    """Replace an operation by an equal earlier one of the same block."""

    name: ClassVar[str] = "cse"
    summary: ClassVar[str] = "merge equal cheap operations, never matrix products"
    example: ClassVar[str] = "inline,cse"
    preparation: ClassVar[bool] = True

    def plan(self, module: ir.Module, target: Target) -> CsePlan:
        found = _Found()
        for block in walk.code_blocks(module.operation):
            _plan_block(block, found)
        return CsePlan(tuple(found.merged), tuple(found.direct))

    def apply(self, plan: CsePlan) -> None:
        for duplicate, first in plan.merged:
            replace(duplicate, first.results)
        written: dict[ir.Value, ir.Value] = {}
        for op, read in plan.direct:
            value = written.get(read.value, read.value)
            if not read.is_whole:
                with ir.InsertionPoint(op), op.location:
                    value = _written(read, value)
            written[op.results[0]] = value
            joined = defining_op(op.operands[0])
            replace(op, [value])
            if joined is not None and joined.name in JOINING and not is_read(joined):
                erase(joined)


def _written(read: DirectRead, value: ir.Value) -> ir.Value:
    if read.bounds is None:
        return stablehlo.broadcast_in_dim(read.type, value, [])
    starts, limits, strides = (list(each) for each in zip(*read.bounds, strict=True))
    return stablehlo.slice(value, starts, limits, strides)


@dataclass(frozen=True)
class _Found:
    """The findings in all blocks so far; ``canonical`` has the replacements of results."""

    merged: list[tuple[ir.Operation, ir.Operation]] = field(default_factory=list)
    direct: list[tuple[ir.Operation, DirectRead]] = field(default_factory=list)
    canonical: dict[ir.Value, ir.Value] = field(default_factory=dict)


def _plan_block(block: ir.Block, found: _Found) -> None:
    """Adds the block's duplicates, and its slices that lie in an operand of their operand."""
    first_alike: dict[Hashable, ir.Operation] = {}
    first_equal: dict[Hashable, dict[Hashable, ir.Operation]] = {}
    first_read: dict[DirectRead, ir.Operation] = {}
    canonical = found.canonical
    for view in block.operations:
        op = view.operation
        read = direct_read(op, canonical)
        if read is not None:
            first = op if read.is_whole else first_read.setdefault(read, op)
            if first is not op:
                found.merged.append((op, first))
            elif read.is_whole or read.is_found:
                found.direct.append((op, read))
            if read.is_whole or first is not op:
                canonical[op.results[0]] = read.value if read.is_whole else first.results[0]
            continue
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
            found.merged.append((op, first))
            canonical.update(zip(op.results, first.results, strict=True))


def _may_merge(op: ir.Operation) -> bool:
    """Whether the operation is cheap, or a sharding constraint.

    A sharding constraint may become a collective, which need not run twice.
    """
    return is_cheap(op) or op.name == CONSTRAINT
