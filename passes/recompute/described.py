"""Values and operations of a plan as JSON."""

from __future__ import annotations

from jax.extend.mlir import ir

from ..ir.locations import operation_name, source_of
from ..ir.types import tensor_bytes


def describe_value(value: ir.Value) -> dict[str, object]:
    """A value as JSON: the name and source line of its producer, its type and size in bytes.

    "library" is there where the line, which is the user's own, calls into an installed package.
    """
    location = value.location
    return {
        "name": operation_name(location),
        **source_of(location).to_json(),
        "type": str(value.type),
        "bytes": tensor_bytes(value.type),
    }


def describe_operation(op: ir.Operation) -> dict[str, object]:
    """An operation as JSON: its kind, name and source line."""
    return {
        "operation": op.name,
        "name": operation_name(op.location),
        **source_of(op.location).to_json(),
    }
