"""Slices of values at places that are known when a program runs, and other small steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .table import counter


@dataclass(frozen=True)
class Box:
    """A part of a value.

    Attributes:
      bounds: by axis, where it begins, a scalar, and how long it is. Of the other axes it has all.
    """

    bounds: Mapping[int, tuple[ir.Value, int]]

    def type_in(self, whole: ir.RankedTensorType) -> ir.RankedTensorType:
        """The type of this part of a value of some type."""
        shape = list(whole.shape)
        for axis, (_, length) in self.bounds.items():
            shape[axis] = length
        return ir.RankedTensorType.get(shape, whole.element_type)

    def slice(self, value: ir.Value) -> ir.Value:
        """This part of a value."""
        type_ = ir.RankedTensorType(value.type)
        sizes = ir.DenseI64ArrayAttr.get(self.type_in(type_).shape)
        return stablehlo.dynamic_slice(value, self._starts(type_.rank), sizes)

    def update(self, value: ir.Value, part: ir.Value) -> ir.Value:
        """The value with another part."""
        starts = self._starts(ir.RankedTensorType(value.type).rank)
        return stablehlo.DynamicUpdateSliceOp(value, part, starts).result

    def _starts(self, rank: int) -> Sequence[ir.Value]:
        zero = counter(0)
        return [self.bounds.get(axis, (zero, 0))[0] for axis in range(rank)]


def broadcast(value: ir.Value, shape: list[int], axes: list[int]) -> ir.Value:
    type_ = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
    return stablehlo.broadcast_in_dim(type_, value, ir.DenseI64ArrayAttr.get(axes))


def converted(value: ir.Value, element: ir.Type) -> ir.Value:
    """The value with elements of a type: itself where it has them."""
    type_ = ir.RankedTensorType.get(ir.RankedTensorType(value.type).shape, element)
    return value if value.type == type_ else stablehlo.convert(type_, value)
