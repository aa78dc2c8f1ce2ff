"""Which operations are of a backward pass or of rematerialization, by their names.

Names say what is worth a word to people, and where work for a share may be spared; what a rewrite
rests on is the flow of data.
"""

from __future__ import annotations

import re

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.locations import REMAT_SCOPE, operation_name

_TRANSPOSED = re.compile(r"(?:^|[/(])transpose\(")


def has_remat_name(op: ir.Operation) -> bool:
    """Whether rematerialization put the operation in, or rebuilt it."""
    return REMAT_SCOPE in operation_name(op.location)


def is_backward(op: ir.Operation) -> bool:
    """Whether JAX made the operation by transposing, or hloom by rematerializing, a forward one.

    JAX's name stacks are a hint, not a promise.
    """
    name = operation_name(op.location)
    return REMAT_SCOPE in name or bool(_TRANSPOSED.search(name))


def may_have_gradient(module: ir.Module) -> bool:
    """Whether JAX's names tell of a backward pass, or the module has no names to tell.

    For what is said to people: a share that a program without one misses is worth no warning.
    """
    named = False
    for op in walk.operations(module.operation):
        if is_backward(op):
            return True
        named = named or bool(operation_name(op.location))
    return not named


def is_rematerialized(block: ir.Block) -> bool:
    """Whether rematerialization has been over the block, or the loops in it, already."""
    return any(
        has_remat_name(op)
        for view in block.operations
        for op in (view.operation, *walk.operations(view.operation))
    )
