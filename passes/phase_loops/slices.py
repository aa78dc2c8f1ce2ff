"""Reads, writes and types a chunk of a value, and resizes attributes that hold its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.signatures.signature import AxisLayout
from ..ir import walk
from ..ir.build import Box, broadcast, integer_like, reshaped, typed
from ..ir.values import shape_of
from .devices import EVERYTHING, DeviceShare


@dataclass(frozen=True)
class ChunkStart:
    """Where a chunk begins, and how long it is.

    Attributes:
      index: the first element of the dimension, a scalar.
      zero: a zero of the same type.
      length: the elements of the chunk.
      share: the share of the device that runs the loop.
    """

    index: ir.Value
    zero: ir.Value
    length: int
    share: DeviceShare = EVERYTHING


def chunk_type(type_: ir.Type, layout: AxisLayout, chunk: ChunkStart) -> ir.Type:
    """Returns the type of a chunk of a value of this type."""
    return resized(type_, chunk.share.own(layout), chunk.length)


def resized(type_: ir.Type, layout: AxisLayout, length: int) -> ir.Type:
    """Returns a type with so many elements of the dimension in an axis of this layout."""
    shape = shape_of(type_)
    shape[layout.axis] = layout.outer * length * layout.inner
    return typed(type_, shape)


def stack_type(type_: ir.Type, layout: AxisLayout) -> ir.Type:
    """Returns the type in which chunks of a value are collected.

    Where the dimension is not the major part of its axis, it has an axis of its own there.
    """
    if layout.outer == 1:
        return type_
    shape, axis = shape_of(type_), layout.axis
    divided = (layout.outer, layout.size, layout.inner)
    return typed(type_, [*shape[:axis], *divided, *shape[axis + 1 :]])


def read_chunk(value: ir.Value, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """Reads a chunk of a whole value."""
    value = chunk.share.cut(value, layout, chunk.zero)
    return read_own_chunk(value, chunk.share.own(layout), chunk)


def read_own_chunk(value: ir.Value, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """Reads a chunk of the part of a value that a device has."""
    made = resized(value.type, layout, chunk.length)
    stack = reshaped(value, shape_of(stack_type(value.type, layout)))
    return reshaped(chunk_box(layout, chunk).slice(stack), shape_of(made))


def write_chunk(stack: ir.Value, part: ir.Value, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """Returns a stack with a chunk of a value written into it."""
    box = chunk_box(layout, chunk)
    return box.update(stack, reshaped(part, box.type_in(stack.type).shape))


def read_iota(type_: ir.Type, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """Returns a chunk of an iota along the axis that is cut: its numbers, cut then broadcast."""
    line = stablehlo.iota(typed(type_, [layout.length]), 0)
    cut = read_chunk(line, replace(layout, axis=0), chunk)
    return broadcast(cut, shape_of(chunk_type(type_, layout, chunk)), [layout.axis])


def chunk_box(layout: AxisLayout, chunk: ChunkStart) -> Box:
    """Returns the place of a chunk in a stack."""
    if layout.outer > 1:
        return Box({layout.axis + 1: (chunk.index, chunk.length)}, chunk.zero)
    start = chunk.index
    if layout.inner > 1:
        start = stablehlo.multiply(start, integer_like(start, layout.inner))
    return Box({layout.axis: (start, chunk.length * layout.inner)}, chunk.zero)


def resize_attributes(op: ir.Operation) -> None:
    """Makes the attributes of an operation agree with its operands and results.

    These are all attributes of StableHLO that hold a size which a rule of `dimension_flow` lets
    change, except those of constants.
    """
    resize = _RESIZES.get(op.name)
    if resize is not None:
        resize(op)


def _slice(op: ir.Operation) -> None:
    ends, starts = walk.integers(op, "limit_indices"), walk.integers(op, "start_indices")
    limits = [
        start + size if stride == 1 else end
        for start, size, stride, end in zip(
            starts, shape_of(op.results[0].type), walk.integers(op, "strides"), ends, strict=True
        )
    ]
    op.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(limits)


def _dynamic_slice(op: ir.Operation) -> None:
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(shape_of(op.results[0].type))


def _gather(op: ir.Operation) -> None:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    slices, made = walk.integers(op, "slice_sizes"), shape_of(op.results[0].type)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [axis for axis in range(len(slices)) if axis not in dropped]
    for axis, place in zip(kept, numbers.offset_dims, strict=True):
        slices[axis] = made[place]
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(slices)


def _convolution(op: ir.Operation) -> None:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel = (shape_of(operand.type) for operand in op.operands)
    made = shape_of(op.results[0].type)
    counts = {
        "feature_group_count": image[numbers.input_feature_dimension]
        // kernel[numbers.kernel_input_feature_dimension],
        "batch_group_count": image[numbers.input_batch_dimension]
        // made[numbers.output_batch_dimension],
    }
    for name, count in counts.items():
        op.attributes[name] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count)


_RESIZES: Mapping[str, Callable[[ir.Operation], None]] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.gather": _gather,
    "stablehlo.slice": _slice,
}
