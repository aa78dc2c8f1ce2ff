"""The floating-point operations of single StableHLO and CHLO operations.

The row of an operation in `ir/ops` has its FLOPs for each element; operations without such a figure
are counted here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..ir import walk
from ..ir.ops import facts_of
from ..ir.products import RAGGED_DOT, ProductAxes
from ..ir.types import TensorSizes
from ..ir.values import shape_of
from .kernels import work_of


def operation_flops(op: ir.Operation, sizes: TensorSizes) -> float:
    """Returns the FLOPs of one execution; a multiply-add counts as two.

    A loop or a conditional counts without its regions, i.e. 0. Operations on values without a
    static size count as 0.
    """
    flops = facts_of(op.name).flops
    if flops == 0 or not len(op.results):
        return 0.0
    if flops is None:
        return float(COUNTERS[op.name](op, sizes))
    return float(flops * sizes.of(op.results[0]).elements)


class DenseSizes(TensorSizes):
    """Sizes by which a ragged product counts as the dense product that XLA executes for it: every
    group's matrix is multiplied by every row."""

    def product_share(self, op: ir.Operation) -> float:
        return float(dense_groups(op)) if op.name == RAGGED_DOT else 1.0


def dense_groups(op: ir.Operation) -> int:
    """Returns how often a dense product for a ragged one multiplies a row: once for each group."""
    axes = ProductAxes.of(op)
    if {*axes.ragged} & {*axes.left.batch}:
        return 1  # nothing is multiplied twice
    return max(shape_of(op.operands[2])[-1], 1)


def executed_sizes(platform: str) -> TensorSizes:
    """Returns the sizes for FLOPs that XLA executes; XLA:TPU has a kernel for ragged products."""
    return TensorSizes() if platform == "tpu" else DenseSizes()


Counter = Callable[[ir.Operation, TensorSizes], float]

COUNTERS: dict[str, Counter] = {}
"""The function that counts the FLOPs of each operation."""


def _counts(*names: str) -> Callable[[Counter], Counter]:
    """Registers a function as the counter of the operations of these names."""

    def declared(counter: Counter) -> Counter:
        COUNTERS.update(dict.fromkeys(names, counter))
        return counter

    return declared


def _body(op: ir.Operation) -> int:
    """Counts the operations in the combiner of a reduction, a sort or a scatter."""
    return len(list(op.regions[0].blocks[0].operations)) - 1


def _window(op: ir.Operation) -> int:
    if "window_dimensions" not in op.attributes:
        return 1
    return math.prod(ir.DenseI64ArrayAttr(op.attributes["window_dimensions"]))


@_counts("stablehlo.reduce")
def _reduce(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.operands[0]).elements * _body(op)


@_counts("stablehlo.reduce_window")
def _reduce_window(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.results[0]).elements * _window(op) * _body(op)


@_counts("stablehlo.select_and_scatter")
def _select_and_scatter(op: ir.Operation, sizes: TensorSizes) -> float:
    """Counts a comparison for each element of the window, then the addition."""
    return sizes.of(op.operands[1]).elements * (_window(op) + 1)


@_counts("stablehlo.scatter")
def _scatter(op: ir.Operation, sizes: TensorSizes) -> float:
    updates = op.operands[len(op.operands) - 1]
    return sizes.of(updates).elements * _body(op)


@_counts("stablehlo.sort")
def _sort(op: ir.Operation, sizes: TensorSizes) -> float:
    axis = ir.IntegerAttr(op.attributes["dimension"]).value
    return _comparisons(op, axis, sizes) * _body(op)


@_counts("chlo.top_k")
def _top_k(op: ir.Operation, sizes: TensorSizes) -> float:
    return _comparisons(op, -1, sizes)


def _comparisons(op: ir.Operation, axis: int, sizes: TensorSizes) -> float:
    length = ir.ShapedType(op.operands[0].type).shape[axis]
    return sizes.of(op.operands[0]).elements * math.log2(max(2, length))


@_counts("stablehlo.fft")
def _fft(op: ir.Operation, sizes: TensorSizes) -> float:
    length = math.prod(ir.DenseI64ArrayAttr(op.attributes["fft_length"]))
    return 5.0 * sizes.of(op.results[0]).elements * math.log2(max(2, length))


@_counts("stablehlo.cholesky")
def _cholesky(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.results[0]).elements * ir.ShapedType(op.results[0].type).shape[-1] / 3


@_counts("stablehlo.triangular_solve")
def _triangular_solve(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.results[0]).elements * ir.ShapedType(op.operands[0].type).shape[-1]


@_counts("stablehlo.map")
def _map(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.results[0]).elements * _body(op)


@_counts("chlo.ragged_dot", "stablehlo.convolution", "stablehlo.dot", "stablehlo.dot_general")
def _product(op: ir.Operation, sizes: TensorSizes) -> float:
    """Counts two FLOPs for a pair of real numbers, four times as many for complex ones."""
    left, out = ir.ShapedType(op.operands[0].type), ir.ShapedType(op.results[0].type)
    if not left.has_static_shape or not out.has_static_shape:
        return 0.0
    pairs = _convolution(op) if op.name == "stablehlo.convolution" else _dot(op)
    per_pair = 8.0 if isinstance(out.element_type, ir.ComplexType) else 2.0
    return per_pair * pairs * sizes.product_share(op)


@_counts("stablehlo.composite", "stablehlo.custom_call")
def _kernel(op: ir.Operation, sizes: TensorSizes) -> float:
    """Returns the FLOPs of a kernel; 0 for an unknown one."""
    work = work_of(op)
    return 0.0 if work is None else (work.flops + work.vector_flops) * sizes.product_share(op)


def _dot(op: ir.Operation) -> float:
    """Counts the pairs of a product; in a ragged one each row is multiplied for one group only.

    `DenseSizes` count every group's work, as XLA does it on CPUs and GPUs.
    """
    axes, left = ProductAxes.of(op), shape_of(op.operands[0])
    contracted = math.prod(left[axis] for axis in axes.left.contracted)
    groups = shape_of(op.operands[2])[-1] if {*axes.ragged} & {*axes.left.contracted} else 1
    return float(math.prod(shape_of(op.results[0])) * contracted) / max(groups, 1)


def _convolution(op: ir.Operation) -> float:
    """Counts the existing pairs of input and kernel elements; padding and holes cost nothing.

    Feature groups are in the kernel's input features, which are those of one group. Batch groups
    share out the batch: an output feature sees the part of its group.
    """
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel, out = shape_of(op.operands[0]), shape_of(op.operands[1]), shape_of(op.results[0])
    axes = len(numbers.input_spatial_dimensions)
    strides = walk.integers(op, "window_strides", [1] * axes)
    image_dilation = walk.integers(op, "lhs_dilation", [1] * axes)
    kernel_dilation = walk.integers(op, "rhs_dilation", [1] * axes)
    padding = walk.integers(op, "padding", [0] * (2 * axes))
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
    """Returns the pairs of an output and a kernel position that read an element of the image."""
    last = (image - 1) * image_dilation
    shift = np.arange(kernel, dtype=np.int64) * dilation - low
    first_out = np.maximum(-(shift // stride), 0)
    last_out = np.minimum((last - shift) // stride, out - 1)
    count = 0
    for residue in range(image_dilation):
        # The outputs with this residue all read an element, or all read the holes between.
        reads_element = (residue * stride + shift) % image_dilation == 0
        below = (last_out - residue) // image_dilation - (first_out - 1 - residue) // image_dilation
        count += int(np.maximum(below, 0)[reads_element].sum())
    return count
