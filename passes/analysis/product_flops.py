"""Floating-point operations of matrix products and convolutions; a multiply-add counts as two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo


def product_flops(op: ir.Operation) -> float | None:
    """FLOPs of a product with static shapes; None for every other operation.

    Operations on complex numbers count as four times as many.
    """
    counter = _COUNTERS.get(op.name)
    if counter is None:
        return None
    left, out = ir.ShapedType(op.operands[0].type), ir.ShapedType(op.results[0].type)
    if not left.has_static_shape or not out.has_static_shape:
        return None
    factor = 8.0 if str(out.element_type).startswith("complex") else 2.0
    return factor * counter(op)


def _shape(value: ir.Value) -> list[int]:
    return list(ir.ShapedType(value.type).shape)


def _dot_general(op: ir.Operation) -> float:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = _shape(op.operands[0])
    contracted = math.prod(left[axis] for axis in numbers.lhs_contracting_dimensions)
    return float(math.prod(_shape(op.results[0])) * contracted)


def _dot(op: ir.Operation) -> float:
    return float(math.prod(_shape(op.results[0])) * _shape(op.operands[0])[-1])


def _ragged_dot(op: ir.Operation) -> float:
    """Every row meets the matrix of one group: groups share the work of one product."""
    return float(math.prod(_shape(op.results[0])) * _shape(op.operands[0])[-1])


def _convolution(op: ir.Operation) -> float:
    """Only pairs of an input and a kernel element that are there; padding and holes cost nothing.

    Feature groups are in the kernel's input features, which are those of one group. Batch groups
    share out the batch: an output feature sees the part of its group.
    """
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel, out = _shape(op.operands[0]), _shape(op.operands[1]), _shape(op.results[0])
    axes = len(numbers.input_spatial_dimensions)
    strides = _numbers(op, "window_strides", [1] * axes)
    image_dilation = _numbers(op, "lhs_dilation", [1] * axes)
    kernel_dilation = _numbers(op, "rhs_dilation", [1] * axes)
    padding = _numbers(op, "padding", [0] * (2 * axes))
    taps = math.prod(
        _taps(
            image[numbers.input_spatial_dimensions[axis]],
            kernel[numbers.kernel_spatial_dimensions[axis]],
            out[numbers.output_spatial_dimensions[axis]],
            strides[axis],
            padding[2 * axis],
            image_dilation[axis],
            kernel_dilation[axis],
        )
        for axis in range(axes)
    )
    features = (
        out[numbers.output_feature_dimension] * kernel[numbers.kernel_input_feature_dimension]
    )
    return float(taps * out[numbers.output_batch_dimension] * features)


def _taps(
    image: int, kernel: int, out: int, stride: int, low: int, image_dilation: int, dilation: int
) -> int:
    """How many pairs of an output and a kernel position meet an element of the image."""
    last = (image - 1) * image_dilation
    shift = np.arange(kernel, dtype=np.int64) * dilation - low
    first_out = np.maximum(-(shift // stride), 0)
    last_out = np.minimum((last - shift) // stride, out - 1)
    count = 0
    for residue in range(image_dilation):
        # Of the outputs with this residue all meet an element, or all meet the holes between.
        meets = (residue * stride + shift) % image_dilation == 0
        below = (last_out - residue) // image_dilation - (first_out - 1 - residue) // image_dilation
        count += int(np.maximum(below, 0)[meets].sum())
    return count


def _numbers(op: ir.Operation, name: str, missing: Sequence[int]) -> list[int]:
    """An attribute of integers, whichever of MLIR's two forms it has."""
    if name not in op.attributes:
        return list(missing)
    attribute = op.attributes[name]
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return [int(number) for number in np.array(attribute).reshape(-1)]
    return list(ir.DenseI64ArrayAttr(attribute))


_COUNTERS = {
    "chlo.ragged_dot": _ragged_dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.dot": _dot,
    "stablehlo.dot_general": _dot_general,
}

PRODUCTS = frozenset(_COUNTERS)
"""Names of matrix products and convolutions."""
