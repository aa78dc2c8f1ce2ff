"""Custom calls: the target, the API version, the operands that results alias; and the placements
by which JAX sets the memory of a value, the device's or its host's."""

from __future__ import annotations

import re

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import walk

CUSTOM_CALL = "stablehlo.custom_call"

OWN = "hloom."
"""The prefix of the targets of hloom's own kernels."""

TYPED_FFI = 4
"""The `api_version` of a custom call to a typed FFI handler."""

TYPED_ATTRIBUTES = "mhlo.backend_config"
"""The attribute in which JAX writes those of a typed FFI handler, without an `api_version`."""

DEVICE, PINNED_HOST = "device", "pinned_host"
"""JAX's names of memories."""

PLACEMENT = "annotate_device_placement"
"""The target of the custom call by which JAX places a value. XLA's offloading consumes it: a slice
that is stored to a stack is placed on the host, and with it the stack."""

_ATTRIBUTES, _MEMORY = "mhlo.frontend_attributes", "_xla_buffer_placement"

_PYTHON_CALLBACK = re.compile(r"\w*_python_\w*callback")
"""The targets by which JAX calls Python, on every platform."""


def target_of(op: ir.Operation) -> str | None:
    """Returns the target of a custom call; None where the operation is none."""
    if op.name != CUSTOM_CALL:
        return None
    return ir.StringAttr(op.attributes["call_target_name"]).value


def is_typed_ffi(call: ir.Operation) -> bool:
    """Whether a custom call calls a typed FFI handler; the others are legacy."""
    attributes = walk.readable_attributes(call)
    version = attributes.get("api_version")
    typed = isinstance(version, ir.IntegerAttr) and version.value == TYPED_FFI
    return typed or TYPED_ATTRIBUTES in attributes


def aliased_operands(call: ir.Operation) -> frozenset[int]:
    """Returns the operands whose buffers a custom call writes its results to."""
    aliases = walk.readable_attributes(call).get("output_operand_aliases")
    found = list(aliases) if isinstance(aliases, ir.ArrayAttr) else []
    return frozenset(stablehlo.OutputOperandAlias(alias).operand_index for alias in found)


def is_python_callback(target: str) -> bool:
    """Whether a custom call of this target is JAX's call of a Python function."""
    return _PYTHON_CALLBACK.fullmatch(target) is not None


def is_host_callback(op: ir.Operation) -> bool:
    """Whether the operation itself calls Python on the host."""
    target = target_of(op)
    return target is not None and is_python_callback(target)


def placed(value: ir.Value, memory: str) -> ir.Value:
    """Returns the value placed in a memory; written at the insertion point, as for `device_put`."""
    attributes = {
        "call_target_name": ir.StringAttr.get(PLACEMENT),
        "backend_config": ir.StringAttr.get(""),
        "has_side_effect": ir.BoolAttr.get(True),
        _ATTRIBUTES: ir.DictAttr.get({_MEMORY: ir.StringAttr.get(memory)}),
    }
    call = ir.Operation.create(
        CUSTOM_CALL, results=[value.type], operands=[value], attributes=attributes
    )
    return call.results[0]


_ALLOCATE = "AllocateBuffer"
"""The target of the custom call that XLA, for GPUs and TPUs, turns into a buffer and no code."""


def allocated(type_: ir.Type) -> ir.Value:
    """Returns a tensor in a buffer of its own, uninitialized; written at the insertion point."""
    call = ir.Operation.create(
        CUSTOM_CALL,
        results=[type_],
        operands=[],
        attributes={"call_target_name": ir.StringAttr.get(_ALLOCATE)},
    )
    return call.results[0]


def placement_of(op: ir.Operation) -> str | None:
    """Returns the memory that an operation places its operand in; None where it places none."""
    if target_of(op) != PLACEMENT:
        return None
    attributes = walk.readable_attributes(op).get(_ATTRIBUTES)
    if not isinstance(attributes, ir.DictAttr) or _MEMORY not in attributes:
        return None
    return ir.StringAttr(attributes[_MEMORY]).value


def is_stored_on_host(update: ir.Operation) -> bool:
    """Whether a `dynamic_update_slice` stores to a stack on the host: its update is placed there.

    Reshapes and broadcasts between placement and update are ignored.
    """
    value = update.operands[1]
    while isinstance(value, ir.OpResult):
        op = value.owner.operation
        if op.name not in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
            return placement_of(op) == PINNED_HOST
        value = op.operands[0]
    return False


def loads_ahead(op: ir.Operation) -> dict[int, ir.Operation]:
    """Returns, by carry, the placements on the device that a loop passes to its next iteration;
    none where the operation is no loop."""
    if op.name != "stablehlo.while":
        return {}
    found: dict[int, ir.Operation] = {}
    for number, value in enumerate(walk.terminator(op.regions[1].blocks[0]).operands):
        owner = value.owner
        if not isinstance(owner, ir.Block) and placement_of(owner.operation) == DEVICE:
            found[number] = owner.operation
    return found
