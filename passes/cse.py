"""Merge equal cheap operations of a block, so that a value has one name before it is weighed.

JAX's autodiff computes the same thing under several names (``x - mean`` for the value and for its
derivative). XLA merges these later; an analysis that sees them apart would keep both.

Before::

    %0 = stablehlo.subtract %x, %m : tensor<4xf32>
    %1 = stablehlo.subtract %x, %m : tensor<4xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<4xf32>

After::

    %0 = stablehlo.subtract %x, %m : tensor<4xf32>
    %2 = stablehlo.multiply %0, %0 : tensor<4xf32>

Only cheap operations (elementwise ones, constants, movements of data, reductions) and sharding
constraints merge, with equal operands, attributes, regions and types, and only within one block.
Two equal matrix products stay: XLA merges them. MLIR's own ``cse`` also merges optimization
barriers (which undoes a user's ``jax.checkpoint``) and replaces a constant of a loop body by an
outer one (which XLA then carries through the loop).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from hloom.passes.analysis.purity import is_cheap
from hloom.passes.analysis.sharding_constraints import CONSTRAINT
from hloom.passes.framework.base import Pass, Target
from hloom.passes.framework.text import pluralize
from hloom.passes.ir import walk


@dataclass(frozen=True)
class CsePlan:
    """Pairs of an operation and the earlier one that stands for it."""

    merged: tuple[tuple[ir.Operation, ir.Operation], ...]

    @property
    def empty(self) -> bool:
        return not self.merged

    def summary(self) -> str:
        return f"{pluralize(len(self.merged), 'duplicate operation')} merged"

    def to_json(self) -> dict[str, object]:
        return {"merged_operations": len(self.merged)}


@dataclass(frozen=True)
class Cse(Pass):
    """Replace an operation by an equal earlier one of the same block."""

    name: ClassVar[str] = "cse"
    summary: ClassVar[str] = "merge equal cheap operations of a block, never matrix products"
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
            for result, same in zip(duplicate.results, first.results, strict=True):
                result.replace_all_uses_with(same)
            duplicate.erase()


def _plan_block(
    block: ir.Block,
    merged: list[tuple[ir.Operation, ir.Operation]],
    canonical: dict[ir.Value, ir.Value],
) -> None:
    """Adds the block's duplicates to ``merged``, and what stands for their results to the dict."""
    first_alike: dict[Hashable, ir.Operation] = {}
    first_equal: dict[Hashable, dict[Hashable, ir.Operation]] = {}
    for view in block.operations:
        op = view.operation
        # Most operations have no other of their name and operands: no need to look further.
        alike = op.name, tuple([canonical.get(operand, operand) for operand in op.operands])
        first = first_alike.setdefault(alike, op)
        if first is op or not _may_merge(op):
            continue
        equal = first_equal.get(alike)
        if equal is None:
            equal = first_equal[alike] = {_key(first): first} if _may_merge(first) else {}
        first = equal.setdefault(_key(op), op)
        if first is not op:
            merged.append((op, first))
            canonical.update(zip(op.results, first.results, strict=True))


def _may_merge(op: ir.Operation) -> bool:
    """Cheap work; and sharding constraints, which may be where data moves: once is enough."""
    return is_cheap(op) or op.name == CONSTRAINT


def _key(op: ir.Operation) -> Hashable:
    """Equal for operations that differ in their operands at most."""
    return (
        _attributes_key(op),
        tuple(result.type for result in op.results),
        tuple(_body_key(region.blocks[0]) for region in op.regions),
    )


def _body_key(block: ir.Block) -> Hashable:
    """Equal for blocks that compute the same; printing them would number the whole function."""
    number: dict[ir.Value, int] = {}
    for argument in block.arguments:
        number[argument] = len(number)
    rows: list[Hashable] = [tuple(argument.type for argument in block.arguments)]
    for view in block.operations:
        op = view.operation
        read = tuple(number[operand] for operand in op.operands)
        types = tuple(result.type for result in op.results)
        rows.append((op.name, read, _attributes_key(op), types))
        for result in op.results:
            number[result] = len(number)
    return tuple(rows)


def _attributes_key(op: ir.Operation) -> Hashable:
    """Equal for equal attributes; equal to nothing where one of them cannot be read."""
    attributes = walk.readable_attributes(op)
    if any(attribute is None for attribute in attributes.values()):
        return object()
    return tuple(attributes.items())
