"""Rules of matrix products and convolutions: contracted dimensions are sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jax.extend.mlir.dialects import stablehlo

from ...ir.products import ProductAxes
from .rules import OpSite, SignatureBuilder, linear_in, signature
from .signature import Axis, Combine, FactorReduction, Signature

_IN_EACH = (linear_in(0), linear_in(1))
"""A product is linear in one operand, while the other one is whole."""


@signature("stablehlo.dot", "stablehlo.dot_general")
def dot(site: OpSite) -> Signature:
    build, axes = SignatureBuilder(), ProductAxes.of(site.op)
    left, right = (build.axes(shape) for shape in site.operands)
    for one, other in axes.shared:
        right[other] = left[one]
    made = [left[axis] for axis in axes.left.batch + axes.left.free]
    made += [right[axis] for axis in axes.right.free]
    sums = _sums(left[axis] for axis in axes.left.contracted)
    return build.signature([left, right], [made], sums, _IN_EACH)


def _sums(axes: Iterable[Axis]) -> Mapping[int, FactorReduction]:
    """Returns the sums over the factors of axes."""
    terms = FactorReduction(Combine.SUM)
    return {factor: terms for axis in axes for factor in axis}


@signature("chlo.ragged_dot")
def ragged_dot(site: OpSite) -> Signature | None:
    """Returns the signature of a ragged product: an axis that groups rows by place is whole."""
    if len(site.operands[2]) != 1:
        return None
    build, axes = SignatureBuilder(), ProductAxes.of(site.op)
    left, right = (build.axes(shape) for shape in site.operands[:2])
    for one, other in axes.shared:
        right[other] = left[one]
    made = [left[axis] for axis in axes.left.batch + axes.left.free]
    made += [right[axis] for axis in axes.right.free if axis not in axes.groups]
    contracted = [axis for axis in axes.left.contracted if axis not in axes.ragged]
    if len(contracted) < len(axes.left.contracted):
        made.insert(0, build.axis(site.results[0][0]))
    whole = {factor for axis in axes.ragged for factor in left[axis]}
    made = [
        build.axis(size) if whole.intersection(axis) else axis
        for axis, size in zip(made, site.results[0], strict=True)
    ]
    sums = _sums(left[axis] for axis in contracted)
    sizes = build.axes(site.operands[2])
    return build.signature([left, right, sizes], [made], sums, _IN_EACH)


@signature("stablehlo.convolution")
def convolution(site: OpSite) -> Signature:
    """Returns the signature of a convolution: images, output features and groups are passed
    through; input features are summed.

    Groups are the major factor of the axes that they divide. Along a spatial axis with a window of
    one element, pixels are passed through.
    """
    numbers = stablehlo.ConvDimensionNumbers(site.op.attributes["dimension_numbers"])
    build = SignatureBuilder()
    image, kernel = site.operands
    out = site.results[0]
    left: list[Axis] = [()] * len(image)
    right: list[Axis] = [()] * len(kernel)
    made: list[Axis] = [()] * len(out)
    features = kernel[numbers.kernel_input_feature_dimension]
    feature_groups = build.axis(site.integer("feature_group_count", 1))
    batch_groups = build.axis(site.integer("batch_group_count", 1))
    groups = feature_groups + batch_groups
    count = site.integer("feature_group_count", 1) * site.integer("batch_group_count", 1)
    contracted = build.axis(features)
    batch = build.axis(out[numbers.output_batch_dimension])
    each = build.axis(kernel[numbers.kernel_output_feature_dimension] // count)
    left[numbers.input_batch_dimension] = batch_groups + batch
    left[numbers.input_feature_dimension] = feature_groups + contracted
    right[numbers.kernel_input_feature_dimension] = contracted
    right[numbers.kernel_output_feature_dimension] = groups + each
    made[numbers.output_batch_dimension] = batch
    made[numbers.output_feature_dimension] = groups + each
    spatial = zip(
        numbers.input_spatial_dimensions,
        numbers.kernel_spatial_dimensions,
        numbers.output_spatial_dimensions,
        _pointwise(site, [kernel[axis] for axis in numbers.kernel_spatial_dimensions]),
        strict=True,
    )
    for read, window, written, passed in spatial:
        left[read], right[window] = build.axis(image[read]), build.axis(kernel[window])
        made[written] = left[read] if passed else build.axis(out[written])
    return build.signature([left, right], [made], _sums([contracted]), _IN_EACH)


def _pointwise(site: OpSite, windows: Sequence[int]) -> list[bool]:
    """Returns, for each spatial axis, whether each output reads only the pixel in its place."""
    rank = len(windows)
    strides = site.integers("window_strides", [1] * rank)
    dilations = site.integers("lhs_dilation", [1] * rank)
    padding = site.integers("padding", [0] * (2 * rank))
    return [
        windows[axis] == strides[axis] == dilations[axis] == 1
        and not any(padding[2 * axis : 2 * axis + 2])
        for axis in range(rank)
    ]
