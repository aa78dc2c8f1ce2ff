"""Finds operations of a module that may run code which XLA did not generate.

A program of StableHLO can compute, and no more. A custom call can do whatever its target does: it
may hold machine code, as kernels of Triton and Mosaic and hloom's own for CUDA do, or addresses.
"""

from __future__ import annotations

import re

from jax.extend.mlir import ir

from hloom.passes.ir import walk
from hloom.passes.ir.custom_calls import OWN, is_python_callback, target_of
from hloom.passes.ir.locations import source_line
from hloom.tools.replay.errors import ReplayError
from hloom.visible import visible

_DIALECTS = frozenset({"builtin", "chlo", "func", "sdy", "stablehlo"})
"""What JAX writes modules in, apart from modules of dynamic shapes, which are not replayed."""

_HINTS = frozenset(
    """
    AllocateBuffer LayoutConstraint PinToDevice PinToDeviceSram PinToHost MoveToDevice MoveToHost
    SPMDFullToShardShape SPMDShardToFullShape Sharding annotate_device_placement ragged_all_to_all
    xla.sdy.FuncResultSharding xla.sdy.GlobalToLocalShape xla.sdy.LocalToGlobalShape
    xla.sdy.ShardingConstraint
    """.split()
)
"""Custom calls that XLA itself takes for a hint, or for an operation of its own."""

_EXPANDED = frozenset(
    """
    AggregateToTopK ApproxTopK Cholesky Eigh LuDecomposition PartialReduce
    ProductOfElementaryHouseholderReflectors Qr ResizeNearest TopK mhlo.erf mhlo.topk
    mhlo.ragged_dot
    """.split()
)
"""Custom calls that XLA writes out in operations of its own."""

_NUMERICAL = re.compile(
    r"(?:lapack|cublas|cusolver|cusparse|hipblas|hipsolver|hipsparse)_\w+"
    r"|(?:cu|hip)_(?:threefry2x32|lu_pivots_to_permutation|cholesky_update)(?:_ffi)?"
    r"|cu(?:da)?_lu_pivots_to_permutation|hip_lu_pivots_to_permutation"
)
"""jaxlib's calls into libraries of linear algebra, which take numbers only."""

_CONFIGS = ("backend_config", "mhlo.backend_config")
"""Where the attributes of a call to a typed handler stand."""


def require_trust(module: ir.Module) -> None:
    """Raises ReplayError for the first operation that may run code which XLA did not make."""
    for op in walk.operations(module.operation):
        what = _foreign(op)
        if what is not None:
            line = source_line(op.location)
            at = f" at {line}" if line else ""
            raise ReplayError(
                f"{visible(what)}{at}. If you trust whoever made this dump with everything that "
                "you can do on this machine, replay it with --trust."
            )


def _foreign(op: ir.Operation) -> str | None:
    """What of an operation may be somebody's code, a sentence; None where nothing is."""
    dialect = op.name.partition(".")[0]
    if dialect not in _DIALECTS:
        return f"the module has an operation '{op.name}', which JAX does not write"
    target = target_of(op)
    if target is None:
        return None
    if target in _HINTS or target in _EXPANDED:
        return None
    # Callbacks are left out of a replay, or refused, by `unsupported`.
    if _NUMERICAL.fullmatch(target) or is_python_callback(target):
        return None
    if target.startswith(OWN) and not _has_image(op):
        return None
    return f"the module calls '{target}', which may carry machine code or run any"


def _has_image(op: ir.Operation) -> bool:
    """Whether a call of hloom's has a kernel with it; on the CPU hloom's are in its library."""
    values = [op.attributes[name] for name in _CONFIGS if name in op.attributes]
    return any(isinstance(value, ir.DictAttr) and "image" in value for value in values)
