"""Sizes of MLIR types, in bytes."""

from __future__ import annotations

import math

from jax.extend.mlir import ir

_BITS_BY_NAME = {"i1": 8, "i2": 2, "ui2": 2, "i4": 4, "ui4": 4, "index": 64}
"""Widths that the name's digits do not tell: a boolean takes a byte in XLA, int2 and int4 pack."""


def element_bits(element: ir.Type) -> int | None:
    """Bits that one element of a tensor takes in device memory; None where the type has no size."""
    name = str(element)
    if name in _BITS_BY_NAME:
        return _BITS_BY_NAME[name]
    if name.startswith("complex<"):
        part = element_bits(ir.ComplexType(element).element_type)
        return None if part is None else 2 * part
    kind, digits = name[:2].rstrip("0123456789"), name.lstrip("abcdefghijklmnopqrstuvwxyz")
    if kind not in ("f", "bf", "i", "ui", "si", "tf"):
        return None
    width = digits.split("E")[0]
    return int(width) if width.isdigit() else None


def tensor_bytes(type_: ir.Type) -> int | None:
    """Bytes of a value of this type on one device; None where it has no static size.

    Tokens and zero-size tensors take 0 bytes. Tensors with dynamic dimensions, quantized
    elements and tuples have no size known here: callers must leave such values alone.
    """
    if isinstance(type_, ir.RankedTensorType):
        if not type_.has_static_shape:
            return None
        bits = element_bits(type_.element_type)
        return None if bits is None else -(-math.prod(type_.shape) * bits // 8)
    return 0 if str(type_) == "!stablehlo.token" else None
