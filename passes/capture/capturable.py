"""What of a program a CUDA graph can hold, operation by operation, and why not the rest.

A graph holds work that the device does without the host: kernels, copies on the device, calls of
libraries that only launch kernels, and loops and branches that consist of such work. Which
operations become what was measured on compiles for an H100, with jaxlib 0.10.2 and 0.12.0.1
(2026-11-21): tests/passes/capture/test_h100.py holds XLA to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.ir.op_memory import KNOWN
from hloom.passes.ir.ops import BRANCHING
from hloom.passes.ir.walk import readable_attributes, values_read


@dataclass(frozen=True)
class Rules:
    """What may stand in a graph although XLA leaves it out by default.

    Attributes:
      loops: loops and branches, as conditional nodes.
      collectives: exchanges between devices.
    """

    loops: bool = True
    collectives: bool = False


@dataclass(frozen=True)
class Obstacle:
    """Why an operation is not captured.

    Attributes:
      op: the operation itself, or the first one inside it that cannot be captured.
      reason: for people, e.g. "a host callback".
    """

    op: ir.Operation
    reason: str


CONTAINERS = BRANCHING | {"sdy.manual_computation"}
"""Names of the operations whose regions are parts of the program."""

COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather all_reduce all_to_all collective_broadcast collective_permute "
        "collective_reduce cross-replica-sum reduce_scatter"
    ).split()
)

_HOST_TRANSFERS = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "recv", "send"))

_LIBRARY_CALLS = frozenset(
    f"stablehlo.{name}" for name in ("cholesky", "convolution", "fft", "triangular_solve")
)
"""Operations that XLA hands to cuDNN, cuFFT, cuSOLVER and cuBLAS through thunks that it never puts
into a graph. (A convolution that autotuning turns into a cuDNN graph would be captured; without the
device at hand none is.)"""

_NO_WORK = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
)
"""Targets of custom calls that tell XLA something and are gone when it makes kernels."""

_OWN = "hloom."
"""What hloom's own kernels are called; they have the command-buffer trait."""

_RAGGED = "ragged_all_to_all"
_TYPED_FFI = 4
"""The `api_version` of a custom call to a typed FFI handler."""

_TYPED_ATTRIBUTES = "mhlo.backend_config"
"""Where JAX writes the attributes for a typed FFI handler, and then no `api_version`."""


def obstacle(op: ir.Operation, rules: Rules) -> Obstacle | None:
    """Why the operation, with all that is inside it, is not captured; None where it is."""
    reason = _reason(op, rules)
    if reason is not None:
        return Obstacle(op, reason)
    if op.name not in CONTAINERS:
        return None
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                found = obstacle(view.operation, rules)
                if found is not None:
                    return found
    return None


def is_host_callback(op: ir.Operation) -> bool:
    """Whether the operation itself calls Python on the host."""
    return op.name == "stablehlo.custom_call" and "callback" in custom_call_target(op)


def is_collective(op: ir.Operation) -> bool:
    """Whether the operation itself is an exchange between devices."""
    if op.name == "stablehlo.custom_call":
        return custom_call_target(op) == _RAGGED
    return op.name in COLLECTIVES


def custom_call_target(op: ir.Operation) -> str:
    """The target of a ``stablehlo.custom_call``."""
    return ir.StringAttr(op.attributes["call_target_name"]).value


def _reason(op: ir.Operation, rules: Rules) -> str | None:
    """Why the operation itself is not captured, whatever is inside it."""
    name = op.name
    if is_collective(op):
        return None if rules.collectives else "a collective, and collectives=off"
    if name == "stablehlo.custom_call":
        return _reason_of_custom_call(op)
    if name in _HOST_TRANSFERS:
        return "a transfer to or from the host"
    if name in _LIBRARY_CALLS:
        return "a library call that XLA does not capture"
    if name in BRANCHING and not rules.loops:
        return "a loop or branch, and loops=off"
    if name == "func.call":
        return "a call that is not inlined"
    if name not in KNOWN and not name.startswith("func."):
        return "an operation that hloom does not know"
    # What is inside a container is looked at by itself.
    read = op.operands if name in CONTAINERS else values_read(op)
    for value in (*read, *op.results):
        if not _can_pass(value.type):
            return f"a value of type {value.type}"
    if any(_is_dynamic(result.type) for result in op.results):
        return "a dynamic shape"
    return None


def _can_pass(type_: ir.Type) -> bool:
    """Whether a value can go into a composite, or come out of one: no future can, and no index."""
    if isinstance(type_, ir.RankedTensorType):
        return not isinstance(type_.element_type, ir.IndexType)
    return isinstance(type_, ir.TupleType) or str(type_) == "!stablehlo.token"


def _reason_of_custom_call(op: ir.Operation) -> str | None:
    target = custom_call_target(op)
    if target in _NO_WORK or target.startswith(("xla.sdy.", _OWN)):
        return None
    if is_host_callback(op):
        return "a host callback"
    if not _is_typed(op):
        return f"a legacy custom call, @{target}"
    return f"a custom call that is not known to have the command-buffer trait, @{target}"


def _is_typed(op: ir.Operation) -> bool:
    """Whether a custom call goes to a typed FFI handler; the others are legacy."""
    attributes = readable_attributes(op)
    version = attributes.get("api_version")
    typed = isinstance(version, ir.IntegerAttr) and version.value == _TYPED_FFI
    return typed or _TYPED_ATTRIBUTES in attributes


def _is_dynamic(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape
