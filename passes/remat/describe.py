"""Plans as JSON: what is recomputed where, by name and source line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.mlir import ir

from hloom.passes.analysis.names import operation_name, source_line
from hloom.passes.analysis.types import tensor_bytes
from hloom.passes.wording import counted


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


_OWNERS, _OWNERS_TOLD = 8, 4
"""How many of the largest values at the peak a plan tells of, and a warning."""


def describe_peak(
    owners: Sequence[tuple[ir.Value, int]], loop: ir.Operation | None, inner_bytes: int
) -> list[dict[str, object]]:
    """The largest owners of memory at the peak, each a value and its bytes on one device.

    ``inner_bytes`` are alive inside of ``loop``, the operation that runs then.
    """
    largest: list[dict[str, object]] = [
        {
            "name": operation_name(value.location),
            "source": source_line(value.location),
            "type": str(value.type),
            "bytes": size,
        }
        for value, size in owners[:_OWNERS]
    ]
    if loop is not None and inner_bytes:
        inside = describe_operation(loop) | {"type": "inside of the loop", "bytes": inner_bytes}
        del inside["operation"]
        largest.append(inside)
    return sorted(largest, key=lambda owner: -int(str(owner["bytes"])))[:_OWNERS]


def describe_floor(plan: Mapping[str, Any], what: str, least_bytes: int, budget_bytes: int) -> str:
    """A sentence for the user of a budget that cannot be held; ``what`` was to hold it."""
    text = (
        f"{what} cannot be held to {_size(budget_bytes)}; the least that was reached is "
        f"{_size(least_bytes)}, which is compiled"
    )
    owners = "; ".join(
        f"{_size(owner['bytes'])} {owner['type']} of {owner['name'] or 'an argument'}"
        + (f" ({owner['source']})" if owner["source"] else "")
        for owner in plan["peak"][:_OWNERS_TOLD]
    )
    return f"{text}. Most of it is in {owners}" if owners else text


def _size(size_bytes: int) -> str:
    """A size for people, three digits or so."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= 10 * scale:
            return f"{size_bytes / scale:.0f} {unit}"
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return counted(size_bytes, "byte")
