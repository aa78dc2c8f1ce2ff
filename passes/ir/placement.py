"""Where a value lies: on the device or in pinned memory of the host, as JAX tells XLA."""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.ir import walk
from hloom.passes.ir.custom_calls import CUSTOM_CALL, target_of

DEVICE, PINNED_HOST = "device", "pinned_host"
"""JAX's names of memories."""

PLACEMENT = "annotate_device_placement"
"""The target of the custom call by which JAX places a value. XLA's offloading consumes it: a slice
that is stored to a stack is placed on the host, and with it the stack."""

_ATTRIBUTES, _MEMORY = "mhlo.frontend_attributes", "_xla_buffer_placement"


def placed(value: ir.Value, memory: str) -> ir.Value:
    """The value, placed in a memory; made at the insertion point, as JAX lowers `device_put`."""
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


def placement_of(op: ir.Operation) -> str | None:
    """The memory that an operation places its operand in; None where it does not place it."""
    if target_of(op) != PLACEMENT:
        return None
    attributes = walk.readable_attributes(op).get(_ATTRIBUTES)
    if not isinstance(attributes, ir.DictAttr) or _MEMORY not in attributes:
        return None
    return ir.StringAttr(attributes[_MEMORY]).value


def is_stored_on_host(update: ir.Operation) -> bool:
    """Whether a `dynamic_update_slice` stores what is placed on the host: its operand lies there.

    Reshapes and broadcasts between the two are looked through.
    """
    value = update.operands[1]
    while isinstance(value, ir.OpResult):
        op = value.owner.operation
        if op.name not in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
            return placement_of(op) == PINNED_HOST
        value = op.operands[0]
    return False
