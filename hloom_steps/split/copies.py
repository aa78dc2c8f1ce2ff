"""Copies operations into another block, for the parts of a step."""

from __future__ import annotations

from collections.abc import Iterable

from jax.extend.mlir import ir

from hloom.passes.ir.clone import remap_operands
from hloom.passes.ir.ops import BARRIER


def copy_ops(ops: Iterable[ir.Operation], known: dict[ir.Value, ir.Value]) -> None:
    """Writes copies of operations of one block, in order, at the insertion point.

    ``known`` maps each value that they read of their block to its replacement; the copies' results
    are added. The copy of a barrier has only the operands that are known.
    """
    for op in ops:
        if op.name == BARRIER:
            _copy_barrier(op, known)
            continue
        copy = op.clone().operation
        remap_operands(copy, known)
        known.update(zip(op.results, copy.results, strict=True))


def _copy_barrier(op: ir.Operation, known: dict[ir.Value, ir.Value]) -> None:
    there = [
        (result, known.get(operand, operand))
        for operand, result in zip(op.operands, op.results, strict=True)
        if operand in known or _is_outside(operand, op.block)
    ]
    copy = ir.Operation.create(
        BARRIER,
        results=[value.type for _, value in there],
        operands=[value for _, value in there],
        loc=op.location,
    )
    known.update(zip((result for result, _ in there), copy.results, strict=True))


def _is_outside(value: ir.Value, block: ir.Block) -> bool:
    """Whether a value is neither a result of a block's operation nor the block's argument."""
    owner = value.owner
    return owner != block if isinstance(owner, ir.Block) else owner.operation.block != block
