"""Operations of a backward pass or of rematerialization, recognised by their names.

Names decide only on messages, and on analyses that may be skipped; rewrites rely on data flow.
"""

from __future__ import annotations

import re

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.locations import REMAT_SCOPE, operation_name

_TRANSPOSED = re.compile(r"(?:^|[/(])transpose\(")


def has_remat_name(op: ir.Operation) -> bool:
    """Whether rematerialization added the operation, or rebuilt it."""
    return REMAT_SCOPE in operation_name(op.location)


def is_backward(op: ir.Operation) -> bool:
    """Whether the operation is the transpose of a forward one by JAX, or its recomputation by
    hloom.

    JAX's name stacks are a hint, not a promise.
    """
    name = operation_name(op.location)
    return REMAT_SCOPE in name or bool(_TRANSPOSED.search(name))


def may_have_gradient(module: ir.Module) -> bool:
    """Whether JAX's names indicate a backward pass, or the module has no names.

    For messages only: a program without a backward pass that misses a share needs no warning.
    """
    named = False
    for op in walk.operations(module.operation):
        if is_backward(op):
            return True
        named = named or bool(operation_name(op.location))
    return not named


def is_rematerialized(block: ir.Block) -> bool:
    """Whether rematerialization has already changed the block, or the loops in it."""
    return any(
        has_remat_name(op)
        for view in block.operations
        for op in (view.operation, *walk.operations(view.operation))
    )
