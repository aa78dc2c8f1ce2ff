"""Elements, widths and bytes of tensors, looked up once for each type."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.ir.types import element_bits, tensor_bytes


@dataclass(frozen=True)
class TensorSize:
    """Elements of a tensor, the bits of one, and the bytes of all."""

    elements: int
    bits: int
    bytes: int


_NOTHING = TensorSize(0, 0, 0)


@dataclass(frozen=True)
class TensorSizes:
    """Sizes of values by their type. A type without a static size counts as nothing."""

    _known: dict[ir.Type, TensorSize] = field(default_factory=dict)

    def of(self, value: ir.Value) -> TensorSize:
        type_ = value.type
        size = self._known.get(type_)
        if size is None:
            size = self._known[type_] = _size(type_)
        return size


def _size(type_: ir.Type) -> TensorSize:
    size_bytes = tensor_bytes(type_)
    if size_bytes is None or not isinstance(type_, ir.RankedTensorType):
        return _NOTHING
    return TensorSize(math.prod(type_.shape), element_bits(type_.element_type) or 0, size_bytes)
