"""A chunk of a value: read from it, written into it, its type; attributes that hold its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.signatures.signature import AxisLayout
from ..ir import walk
from ..ir.values import shape_of


@dataclass(frozen=True)
class ChunkStart:
    """Where a chunk begins, and how long it is.

    Attributes:
      index: the first element of the dimension, a scalar.
      zero: a zero of the same type.
      length: the elements of the chunk.
      devices: how many devices have a part of the dimension each, in a loop that each runs by
        itself; 1 in any other.
      device: the number of the device; None with one.
    """

    index: ir.Value
    zero: ir.Value
    length: int
    devices: int = 1
    device: ir.Value | None = None

    def own(self, layout: AxisLayout) -> AxisLayout:
        """How the dimension lies in the part of a value that one device has."""
        return own_layout(layout, self.devices)


def own_layout(layout: AxisLayout, devices: int) -> AxisLayout:
    """How the dimension lies in the part of a value that one of so many devices has."""
    return replace(layout, outer=layout.outer // devices)


def chunk_type(type_: ir.Type, layout: AxisLayout, chunk: ChunkStart) -> ir.Type:
    """The type of a chunk of a value of this type."""
    return resized(type_, chunk.own(layout), chunk.length)


def resized(type_: ir.Type, layout: AxisLayout, length: int) -> ir.Type:
    """A type with so many elements of the dimension in an axis of this layout."""
    shape = shape_of(type_)
    shape[layout.axis] = layout.outer * length * layout.inner
    return _with_shape(type_, shape)


def stack_type(type_: ir.Type, layout: AxisLayout) -> ir.Type:
    """The type in which chunks of a value are collected.

    Where the dimension is not the major part of its axis, it has an axis of its own there.
    """
    return type_ if layout.outer == 1 else _with_shape(type_, _divided(type_, layout, layout.size))


def read_chunk(value: ir.Value, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """A chunk of a whole value."""
    if chunk.device is not None:
        value = _part(value, layout, chunk, chunk.device)
    return read_own_chunk(value, chunk.own(layout), chunk)


def read_own_chunk(value: ir.Value, layout: AxisLayout, chunk: ChunkStart) -> ir.Value:
    """A chunk of the part of a value that a device has."""
    made = resized(value.type, layout, chunk.length)
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
    return stablehlo.broadcast_in_dim(chunk_type(type_, layout, chunk), cut, axes)


def _part(value: ir.Value, layout: AxisLayout, chunk: ChunkStart, device: ir.Value) -> ir.Value:
    """The part of a whole value that a device has, as if it were sharded."""
    shape, axis = shape_of(value.type), layout.axis
    length = shape[axis] // chunk.devices
    starts = [chunk.zero] * len(shape)
    starts[axis] = stablehlo.multiply(device, scalar(device.type, length))
    shape[axis] = length
    return stablehlo.dynamic_slice(value, starts, ir.DenseI64ArrayAttr.get(shape))


def _window(
    value: ir.Value, layout: AxisLayout, chunk: ChunkStart
) -> tuple[list[int], list[ir.Value]]:
    """The sizes of a chunk in a stack, and where it starts."""
    sizes = shape_of(value.type)
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
    shape, axis = shape_of(type_), layout.axis
    return [*shape[:axis], layout.outer, length, layout.inner, *shape[axis + 1 :]]


def _reshaped(value: ir.Value, type_: ir.Type) -> ir.Value:
    return value if value.type == type_ else stablehlo.reshape(type_, value)


def scalar(type_: ir.Type, number: int) -> ir.Value:
    """A constant of a scalar type."""
    return stablehlo.constant(ir.Attribute.parse(f"dense<{number}> : {type_}"))


def _with_shape(type_: ir.Type, shape: list[int]) -> ir.Type:
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(type_).element_type)


def resize_attributes(op: ir.Operation) -> None:
    """Makes the attributes of an operation agree with its operands and results.

    These are all attributes of StableHLO that hold a size which a rule of `dimension_flow` lets
    change; constants are not meant.
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
