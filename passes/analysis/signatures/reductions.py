"""Rules of reductions, windows, sorts, and kernels that work on the last axes of a batch."""

from __future__ import annotations

from jax.extend.mlir import ir

from .rules import OpSite, SignatureBuilder, combine_of, linear_in, signature
from .signature import SUMS, Axis, Combine, FactorReduction, Signature


@signature("stablehlo.reduce")
def reduce(site: OpSite) -> Signature:
    """Returns the signature of a reduction; several values, as in an argmax, are not cut."""
    build = SignatureBuilder()
    count = len(site.results)
    reduced = set(site.integers("dimensions"))
    read = build.axes(site.operands[0])
    made = [axis for number, axis in enumerate(read) if number not in reduced]
    operands: list[list[Axis]] = [read] * count + [[]] * count
    combine = combine_of(site) if count == 1 else None
    if combine is None:
        return build.signature(operands, [made] * count)
    terms = FactorReduction(combine, frozenset({1}))
    reductions = {factor: terms for number in reduced for factor in read[number]}
    group = linear_in(0, 1, kinds=frozenset({combine}))
    return build.signature(operands, [made], reductions, [group])


@signature("stablehlo.reduce_window")
def reduce_window(site: OpSite) -> Signature:
    """Returns the signature of a windowed reduction: axes with windows of one element pass."""
    build = SignatureBuilder()
    count = len(site.results)
    read = build.axes(site.operands[0])
    single = _single_windows(site, len(read))
    made = [
        axis if alone else build.axis(size)
        for axis, alone, size in zip(read, single, site.results[0], strict=True)
    ]
    combine = combine_of(site) if count == 1 else None
    linear = [] if combine is None else [linear_in(0, 1, kinds=frozenset({combine}))]
    operands: list[list[Axis]] = [read] * count + [[]] * count
    return build.signature(operands, [made] * count, linear=linear)


@signature("stablehlo.select_and_scatter")
def select_and_scatter(site: OpSite) -> Signature:
    """Returns the signature of a select-and-scatter: only the operand decides the selection."""
    build = SignatureBuilder()
    operand, source, _ = site.operands
    single = _single_windows(site, len(operand))
    read, scattered, made = build.axes(operand), build.axes(source), build.axes(operand)
    for axis, alone in enumerate(single):
        if alone and operand[axis] == source[axis]:
            scattered[axis] = made[axis] = read[axis]
    sums = combine_of(site, 1) is Combine.SUM
    return build.signature([read, scattered, []], [made], linear=[linear_in(1, 2)] if sums else [])


def _single_windows(site: OpSite, rank: int) -> list[bool]:
    """Returns, for each axis, whether its windows have one element, one for each element."""
    ones = [1] * rank
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    numbers = zip(*(site.integers(name, ones) for name in names), strict=True)
    padding = site.integers("padding", [0] * (2 * rank))
    return [
        set(along) == {1} and not any(padding[2 * axis : 2 * axis + 2])
        for axis, along in enumerate(numbers)
    ]


@signature("stablehlo.sort")
def sort(site: OpSite) -> Signature:
    build = SignatureBuilder()
    axes = build.axes(site.operands[0])
    along = site.integer("dimension") % max(len(axes), 1)
    made = [build.axis(size) if axis == along else axes[axis] for axis, size in _sizes(site)]
    return build.signature([axes] * len(site.operands), [made] * len(site.results))


def _sizes(site: OpSite) -> list[tuple[int, int]]:
    return list(enumerate(site.results[0]))


@signature("chlo.top_k")
def top_k(site: OpSite) -> Signature:
    build = SignatureBuilder()
    *batch, read = build.axes(site.operands[0])
    made = build.axis(site.results[0][-1])
    return build.signature([[*batch, read]], [[*batch, made]] * 2)


@signature("stablehlo.cholesky")
def cholesky(site: OpSite) -> Signature:
    return _last_axes(site, 2)


@signature("stablehlo.fft")
def fft(site: OpSite) -> Signature:
    return _last_axes(site, len(site.integers("fft_length")), linear=True)


def _last_axes(site: OpSite, count: int, *, linear: bool = False) -> Signature:
    """Returns the signature in which all axes but the last ones are passed through."""
    build = SignatureBuilder()
    [before], [after] = site.operands, site.results
    batch = build.axes(before[: len(before) - count])
    read, made = (build.axes(shape[len(shape) - count :]) for shape in (before, after))
    groups = [linear_in(0, kinds=SUMS)] if linear else []
    return build.signature([batch + read], [batch + made], linear=groups)


@signature("stablehlo.triangular_solve")
def triangular_solve(site: OpSite) -> Signature:
    """Returns the signature of a solve: right-hand sides are separate, the solution is linear."""
    build = SignatureBuilder()
    matrix, right = site.operands
    batch = build.axes(right[:-2])
    left = ir.BoolAttr(site.op.attributes["left_side"]).value
    each = build.axis(right[-1 if left else -2])
    solved, made = build.axis(matrix[-1]), build.axis(matrix[-1])
    read = [solved, each] if left else [each, solved]
    result = [made, each] if left else [each, made]
    square = [build.axis(matrix[-2]), build.axis(matrix[-1])]
    return build.signature([batch + square, batch + read], [batch + result], linear=[linear_in(1)])
