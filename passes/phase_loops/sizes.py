"""Attributes that hold sizes, made to agree with operands and results of other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.ir import walk


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
            starts, _shape(op.results[0]), walk.integers(op, "strides"), ends, strict=True
        )
    ]
    op.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(limits)


def _dynamic_slice(op: ir.Operation) -> None:
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(_shape(op.results[0]))


def _gather(op: ir.Operation) -> None:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    slices, made = walk.integers(op, "slice_sizes"), _shape(op.results[0])
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [axis for axis in range(len(slices)) if axis not in dropped]
    for axis, place in zip(kept, numbers.offset_dims, strict=True):
        slices[axis] = made[place]
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(slices)


def _convolution(op: ir.Operation) -> None:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel, made = _shape(op.operands[0]), _shape(op.operands[1]), _shape(op.results[0])
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


def _shape(value: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)
