"""A chunk of a value: read from it, written into it, its type."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.analysis.dimension_flow.flow import AxisLayout


@dataclass(frozen=True)
class ChunkStart:
    """Where a chunk begins, and how long it is.

    Attributes:
      index: the first element of the dimension, a scalar.
      zero: a zero of the same type.
      length: the elements of the chunk.
    """

    index: ir.Value
    zero: ir.Value
    length: int


def chunk_type(type_: ir.Type, layout: AxisLayout, length: int) -> ir.Type:
    """The type of a chunk of a value of this type."""
    shape = _shape(type_)
    shape[layout.axis] = layout.outer * length * layout.inner
    return _with_shape(type_, shape)


def stack_type(type_: ir.Type, layout: AxisLayout) -> ir.Type:
    """The type in which chunks of a value are collected.

    Where the dimension is not the major part of its axis, it has an axis of its own there.
    """
    return type_ if layout.outer == 1 else _with_shape(type_, _divided(type_, layout, layout.size))


def read_chunk(value: ir.Value, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """A chunk of a whole value."""
    made = chunk_type(value.type, layout, chunk.length)
    source = _reshaped(value, stack_type(value.type, layout))
    sizes, starts = _window(source, layout, chunk)
    sliced = stablehlo.dynamic_slice(source, starts, ir.DenseI64ArrayAttr.get(sizes))
    return _reshaped(sliced, made)


def write_chunk(stack: ir.Value, part: ir.Value, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """A stack with a chunk of a value written into it."""
    sizes, starts = _window(stack, layout, chunk)
    update = _reshaped(part, _with_shape(part.type, sizes))
    return stablehlo.DynamicUpdateSliceOp(stack, update, starts).result


def read_iota(type_: ir.Type, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """A chunk of an iota along the axis that is cut: its numbers, cut and then broadcast."""
    numbers = ir.RankedTensorType.get([layout.length], ir.RankedTensorType(type_).element_type)
    line = stablehlo.IotaOp(numbers, 0).result
    cut = read_chunk(line, AxisLayout(0, layout.outer, layout.size, layout.inner), chunk)
    axes = ir.DenseI64ArrayAttr.get([layout.axis])
    return stablehlo.broadcast_in_dim(chunk_type(type_, layout, chunk.length), cut, axes)


def _window(
    value: ir.Value, layout: AxisLayout, chunk: ChunkStart
) -> tuple[list[int], list[ir.Value]]:
    """The sizes of a chunk in a stack, and where it starts."""
    sizes = _shape(value.type)
    starts = [chunk.zero] * len(sizes)
    if layout.outer == 1:
        sizes[layout.axis] = chunk.length * layout.inner
        starts[layout.axis] = chunk.index
        if layout.inner > 1:
            inner = scalar(chunk.index.type, layout.inner)
            starts[layout.axis] = stablehlo.multiply(chunk.index, inner)
    else:
        sizes[layout.axis + 1] = chunk.length
        starts[layout.axis + 1] = chunk.index
    return sizes, starts


def _divided(type_: ir.Type, layout: AxisLayout, length: int) -> list[int]:
    shape, axis = _shape(type_), layout.axis
    return [*shape[:axis], layout.outer, length, layout.inner, *shape[axis + 1 :]]


def _reshaped(value: ir.Value, type_: ir.Type) -> ir.Value:
    return value if value.type == type_ else stablehlo.reshape(type_, value)


def scalar(type_: ir.Type, number: int) -> ir.Value:
    """A constant of a scalar type."""
    return stablehlo.constant(ir.Attribute.parse(f"dense<{number}> : {type_}"))


def _shape(type_: ir.Type) -> list[int]:
    return list(ir.RankedTensorType(type_).shape)


def _with_shape(type_: ir.Type, shape: list[int]) -> ir.Type:
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(type_).element_type)
