"""Types of elements and tensors: formats of numbers, bits of an element, bytes of a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jax.extend.mlir import ir

_BOOLEAN_BITS, _INDEX_BITS = 8, 64


@dataclass(frozen=True)
class FloatFormat:
    """The bits of exponent and mantissa of a floating-point type, without the sign bit."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        """Returns the bits of a number, with the sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    def holds(self, other: FloatFormat) -> bool:
        """Whether this format represents every number of the other one."""
        return (
            self.exponent_bits >= other.exponent_bits and self.mantissa_bits >= other.mantissa_bits
        )


_FLOAT_FORMATS = {
    "f64": FloatFormat(11, 52),
    "f32": FloatFormat(8, 23),
    "bf16": FloatFormat(8, 7),
    "f16": FloatFormat(5, 10),
}
"""The formats by MLIR's name of the type. The native library has the same facts in
``runtime/csrc/element_bits.h``."""


def float_format(element: ir.Type) -> FloatFormat | None:
    """Returns the format of a floating-point type; None for others, and for 8 bits and fewer."""
    return _FLOAT_FORMATS.get(str(element))


def holds(wide: ir.Type, narrow: ir.FloatType) -> bool:
    """Whether ``wide`` represents every number of the floating-point type ``narrow``.

    For float32 and float64 that is known for every narrower type.
    """
    if wide == narrow:
        return True
    known, other = float_format(wide), float_format(narrow)
    if known is None or other is not None:
        return known is not None and other is not None and known.holds(other)
    return known.bits >= 32 and known.bits > narrow.width


def element_bits(element: ir.Type) -> int | None:
    """Returns the bits of one element of a tensor in device memory; None for a type without size.

    A boolean takes a byte. Elements of 2 and 4 bits are packed; a width that is no power of two
    (f6E2M3FN, tf32) takes the next one. Quantized elements and tokens have none.
    """
    if isinstance(element, ir.ComplexType):
        part = element_bits(element.element_type)
        return None if part is None else 2 * part
    if isinstance(element, ir.IndexType):
        return _INDEX_BITS
    if not isinstance(element, ir.IntegerType | ir.FloatType):
        return None
    width = int(element.width)
    return _BOOLEAN_BITS if width == 1 else 1 << (width - 1).bit_length()


def sum_element(element: ir.Type) -> ir.Type:
    """Returns float32 for narrower floats: a sum of many terms would lose bits between them."""
    narrow = isinstance(element, ir.FloatType) and (element_bits(element) or 0) < 32
    return ir.F32Type.get(element.context) if narrow else element


def tensor_bytes(type_: ir.Type) -> int | None:
    """Returns the bytes of a value of this type on one device; None where it has no static size.

    Tokens and zero-size tensors take 0 bytes. Tensors with dynamic dimensions, quantized
    elements and tuples have no size known here: callers must leave such values alone.
    """
    if isinstance(type_, ir.RankedTensorType):
        if not type_.has_static_shape:
            return None
        bits = element_bits(type_.element_type)
        return None if bits is None else -(-math.prod(type_.shape) * bits // 8)
    return 0 if str(type_) == "!stablehlo.token" else None


@dataclass(frozen=True)
class TensorSize:
    """The number of elements of a tensor, the bits of one, and the bytes of all."""

    elements: int
    bits: int
    bytes: int


_NOTHING = TensorSize(0, 0, 0)


@dataclass(frozen=True)
class TensorSizes:
    """The sizes of values by their type. A type without a static size has size 0.

    Attributes:
      all_groups: a ragged product takes the time of the dense product of all groups.
    """

    all_groups: bool = False
    _known: dict[ir.Type, TensorSize] = field(default_factory=dict)

    def of(self, value: ir.Value) -> TensorSize:
        type_ = value.type
        size = self._known.get(type_)
        if size is None:
            size = self._known[type_] = _size(type_)
        return size

    def product_share(self, op: ir.Operation) -> float:
        """Returns the share of a product's work that one device does: all of it."""
        return 1.0


def _size(type_: ir.Type) -> TensorSize:
    size_bytes = tensor_bytes(type_)
    if size_bytes is None or not isinstance(type_, ir.RankedTensorType):
        return _NOTHING
    return TensorSize(math.prod(type_.shape), element_bits(type_.element_type) or 0, size_bytes)
