"""Plans as JSON: what is recomputed where, by name and source line."""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.analysis.names import operation_name, source_line
from hloom.passes.analysis.types import tensor_bytes


def describe_value(value: ir.Value) -> dict[str, object]:
    """A value by what made it, its type and its size in bytes."""
    location = value.location
    return {
        "name": operation_name(location),
        "source": source_line(location),
        "type": str(value.type),
        "bytes": tensor_bytes(value.type),
    }


def describe_operation(op: ir.Operation) -> dict[str, object]:
    """An operation by its kind, name and source line."""
    return {
        "operation": op.name,
        "name": operation_name(op.location),
        "source": source_line(op.location),
    }
