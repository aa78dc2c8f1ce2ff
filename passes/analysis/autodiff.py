"""Which operations rematerialization has put in."""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.ir import walk
from hloom.passes.ir.locations import REMAT_SCOPE, operation_name


def has_remat_name(op: ir.Operation) -> bool:
    """Whether rematerialization put the operation in, or rebuilt it."""
    return REMAT_SCOPE in operation_name(op.location)


def is_rematerialized(block: ir.Block) -> bool:
    """Whether rematerialization has been over the block, or the loops in it, already."""
    return any(
        has_remat_name(op)
        for view in block.operations
        for op in (view.operation, *walk.operations(view.operation))
    )
