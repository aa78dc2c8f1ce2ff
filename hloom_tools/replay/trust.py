"""Finds operations that a replay cannot run, or runs only where the dump is trusted.

A program of StableHLO can only compute. A custom call can do whatever its target does: it may
contain machine code, as kernels of Triton and Mosaic and hloom's own for CUDA do, or addresses.
Calls to the host cannot run again: the Python program no longer exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax.extend.mlir import ir

from hloom.passes.framework.text import pluralize
from hloom.passes.ir import walk
from hloom.passes.ir.custom_calls import OWN, is_host_callback, is_python_callback, target_of
from hloom.passes.ir.erase import erase
from hloom.passes.ir.locations import operation_name, source_of
from hloom.passes.ir.op_facts import Category
from hloom.passes.ir.ops import facts_of
from hloom.show.visible import visible
from hloom_tools.replay import ReplayError
from hloom_tools.replay.signature import TOKEN

_DIALECTS = frozenset({"builtin", "chlo", "func", "sdy", "stablehlo"})
"""The dialects of JAX's modules, except modules of dynamic shapes, which are not replayed."""

_KNOWN = frozenset(
    """
    AggregateToTopK AllocateBuffer ApproxTopK Cholesky Eigh LayoutConstraint LuDecomposition
    MoveToDevice MoveToHost PartialReduce PinToDevice PinToDeviceSram PinToHost
    ProductOfElementaryHouseholderReflectors Qr ResizeNearest SPMDFullToShardShape
    SPMDShardToFullShape Sharding TopK annotate_device_placement mhlo.erf mhlo.ragged_dot mhlo.topk
    ragged_all_to_all xla.sdy.FuncResultSharding xla.sdy.GlobalToLocalShape
    xla.sdy.LocalToGlobalShape xla.sdy.ShardingConstraint
    """.split()
)
"""Custom calls that XLA reads as a hint, or expands into its own operations."""

_NUMERICAL = re.compile(
    r"(?:lapack|cublas|cusolver|cusparse|hipblas|hipsolver|hipsparse)_\w+"
    r"|(?:cu|hip)_(?:threefry2x32|lu_pivots_to_permutation|cholesky_update)(?:_ffi)?"
    r"|cu(?:da)?_lu_pivots_to_permutation|hip_lu_pivots_to_permutation"
)
"""jaxlib's calls into libraries of linear algebra, which take numbers only."""

_CONFIGS = ("backend_config", "mhlo.backend_config")
"""Attributes with the configuration of a call to a typed handler."""


def require_trust(module: ir.Module) -> None:
    """Raises ReplayError for the first operation that may run code that XLA did not generate."""
    for op in walk.operations(module.operation):
        what = _foreign(op)
        if what is not None:
            source = source_of(op.location)
            at = f" at {source}" if source.line else ""
            raise ReplayError(
                f"{visible(what)}{at}. If you trust whoever made this dump with everything that "
                "you can do on this machine, replay it with --trust."
            )


def _foreign(op: ir.Operation) -> str | None:
    """Describes the part of an operation that may be foreign code; None where it has none."""
    if op.name.partition(".")[0] not in _DIALECTS:
        return f"the module has an operation '{op.name}', which JAX does not write"
    target = target_of(op)
    if target is None:
        return None
    if target in _KNOWN or _NUMERICAL.fullmatch(target) or is_python_callback(target):
        return None
    # A call carries its kernel's code; on the CPU hloom's kernels are in its library.
    configs = [op.attributes[name] for name in _CONFIGS if name in op.attributes]
    has_image = any(isinstance(each, ir.DictAttr) and "image" in each for each in configs)
    if target.startswith(OWN) and not has_image:
        return None
    return f"the module calls '{target}', which may carry machine code or run any"


def remove_silent_callbacks(module: ir.Module) -> tuple[str, ...]:
    """Removes calls that only send values to the host, like `jax.debug.print`, in place; returns
    notes.

    Raises ReplayError where the program uses the result of a host call.
    """
    callbacks = [
        op
        for op in walk.operations(module.operation)
        if facts_of(op.name).category is Category.HOST_TRANSFER or is_host_callback(op)
    ]
    for op in callbacks:
        if any(str(result.type) != TOKEN for result in op.results):
            raise ReplayError(
                f"{_described(op)} calls the host: a Python function (jax.pure_callback, "
                "jax.experimental.io_callback) or a feed that is not in the dump. A replay needs "
                "the module without it."
            )
    for op in callbacks:
        tokens = [operand for operand in op.operands if str(operand.type) == TOKEN]
        for result, token in zip(op.results, tokens, strict=True):
            result.replace_all_uses_with(token)
        erase(op)
    if not callbacks:
        return ()
    return (f"{pluralize(len(callbacks), 'host callback')} without a result left out",)


def place_of_call(module: ir.Module, message: str) -> str | None:
    """Returns the custom call that an error of XLA is about, with its line, or None."""
    for target, op in _custom_calls(module):
        if re.search(rf"(?<!\w){re.escape(target)}(?!\w)", message):
            return _described(op)
    return None


def calls_lapack(module: ir.Module) -> bool:
    """Whether the module calls LAPACK, which JAX loads when it lowers such a call."""
    return any(target.startswith("lapack_") for target, _ in _custom_calls(module))


def _custom_calls(module: ir.Module) -> Iterator[tuple[str, ir.Operation]]:
    for op in walk.operations(module.operation):
        if (target := target_of(op)) is not None:
            yield target, op


def _described(op: ir.Operation) -> str:
    target = target_of(op)
    what = op.name if target is None else f"custom call '{target}'"
    # JAX adds a colon after the name of a callback.
    name, source = operation_name(op.location).rstrip(":"), source_of(op.location)
    of = f" of '{name}'" if name else ""
    return f"{what}{of}" + (f" at {source}" if source.line else "")
