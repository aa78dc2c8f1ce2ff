"""Rules of operations that move elements: to places known before the program runs, by an offset, or
to addresses that are data.

Each is linear in its moved operand, and commutes with a maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ...ir import walk
from .rules import OpSite, SignatureBuilder, combine_of, linear_in, replaces, signature
from .signature import ANY, Axis, FactorReduction, LinearGroup, Signature

_MOVED = (linear_in(0, kinds=ANY),)


@signature("stablehlo.broadcast_in_dim")
def broadcast(site: OpSite) -> Signature:
    build = SignatureBuilder()
    [before], [after] = site.operands, site.results
    made = build.axes(after)
    read: list[Axis] = [
        made[axis] if size == after[axis] else build.axis(size)
        for size, axis in zip(before, site.integers("broadcast_dimensions"), strict=True)
    ]
    return build.signature([read], [made], linear=_MOVED)


@signature("stablehlo.transpose")
def transpose(site: OpSite) -> Signature:
    build = SignatureBuilder()
    read = build.axes(site.operands[0])
    made = [read[axis] for axis in site.integers("permutation")]
    return build.signature([read], [made], linear=_MOVED)


@signature("stablehlo.reverse")
def reverse(site: OpSite) -> Signature:
    reversed_ = set(site.integers("dimensions"))
    return _some_axes(site, [axis not in reversed_ for axis in range(len(site.operands[0]))])


@signature("stablehlo.slice", "stablehlo.dynamic_slice")
def slice_(site: OpSite) -> Signature:
    """Returns the signature of a slice, which along an axis of full length starts at 0."""
    before, after = site.operands[0], site.results[0]
    return _some_axes(site, [size == left for size, left in zip(before, after, strict=True)])


def _some_axes(site: OpSite, passed: Sequence[bool]) -> Signature:
    """Returns the signature where some axes of the first operand pass; others are scalars."""
    build = SignatureBuilder()
    read = build.axes(site.operands[0])
    made = [
        axis if kept else build.axis(size)
        for axis, kept, size in zip(read, passed, site.results[0], strict=True)
    ]
    rest: list[list[Axis]] = [[] for _ in site.operands[1:]]
    return build.signature([read, *rest], [made], linear=_MOVED)


@signature("stablehlo.pad")
def pad(site: OpSite) -> Signature:
    """Returns the signature of a pad: terms of sums are padded with zeros, or terms of padding."""
    build = SignatureBuilder()
    before, after = site.operands[0], site.results[0]
    edges = ("edge_padding_low", "edge_padding_high", "interior_padding")
    padding = zip(*map(site.integers, edges), strict=True)
    read = build.axes(before)
    made = [
        build.axis(size) if any(amounts) else axis
        for axis, size, amounts in zip(read, after, padding, strict=True)
    ]
    return build.signature([read, []], [made], linear=[linear_in(0, 1, kinds=ANY)])


@signature("stablehlo.concatenate")
def concatenate(site: OpSite) -> Signature:
    build = SignatureBuilder()
    made = build.axes(site.results[0])
    along = site.integer("dimension")
    operands = [
        [build.axis(size) if axis == along else made[axis] for axis, size in enumerate(shape)]
        for shape in site.operands
    ]
    everything = linear_in(*range(len(operands)), kinds=ANY)
    return build.signature(operands, [made], linear=[everything])


@signature("stablehlo.dynamic_update_slice")
def dynamic_update_slice(site: OpSite) -> Signature:
    """Returns the signature of an update, which along an axis of full length starts at 0."""
    build = SignatureBuilder()
    whole, part, *indices = site.operands
    read, update, made = build.axes(whole), build.axes(part), build.axes(whole)
    for axis, (size, updated) in enumerate(zip(whole, part, strict=True)):
        if size == updated:
            update[axis] = made[axis] = read[axis]
    scalars: list[list[Axis]] = [[] for _ in indices]
    group = linear_in(0, 1, kinds=ANY)
    return build.signature([read, update, *scalars], [made], linear=[group])


@signature("stablehlo.reshape")
def reshape(site: OpSite) -> Signature:
    """Returns the signature of a reshape, by the finest common factors from the major side."""
    build = SignatureBuilder()
    [before], [after] = site.operands, site.results
    read, made = common_factors(build, before, after)
    return build.signature([read], [made], linear=_MOVED)


def common_factors(
    build: SignatureBuilder, before: Sequence[int], after: Sequence[int]
) -> tuple[list[Axis], list[Axis]]:
    """Returns axes of two shapes of as many elements, in factors that they share where they can."""
    if 0 in before:
        return build.axes(before), build.axes(after)
    read: list[list[int]] = [[] for _ in before]
    made: list[list[int]] = [[] for _ in after]
    left, right = list(before), list(after)  # what is not yet in factors of each axis
    at = to = 0
    while True:
        while at < len(left) and left[at] == 1:
            at += 1
        while to < len(right) and right[to] == 1:
            to += 1
        if at == len(left) or to == len(right):
            return list(map(tuple, read)), list(map(tuple, made))
        shared = math.gcd(left[at], right[to])
        if shared == 1:
            at, to = _skip(build, left, right, read, made, at, to)
            continue
        factor = build.factor(shared)
        read[at].append(factor)
        made[to].append(factor)
        left[at] //= shared
        right[to] //= shared


def _skip(
    build: SignatureBuilder,
    left: list[int],
    right: list[int],
    read: list[list[int]],
    made: list[list[int]],
    at: int,
    to: int,
) -> tuple[int, int]:
    """Skips axes that share nothing, to where both shapes have equally many elements left."""
    before, after = left[at], right[to]
    ends = [at, to]
    while before != after:
        if before < after:
            ends[0] += 1
            before *= left[ends[0]]
        else:
            ends[1] += 1
            after *= right[ends[1]]
    for sizes, factors, first, last in ((left, read, at, ends[0]), (right, made, to, ends[1])):
        for axis in range(first, last + 1):
            if sizes[axis] > 1:
                factors[axis].append(build.factor(sizes[axis]))
            sizes[axis] = 1
    return ends[0], ends[1]


@signature("stablehlo.gather")
def gather(site: OpSite) -> Signature:
    """Returns the signature of a gather: index rows and whole axes of slices are passed through."""
    numbers = stablehlo.GatherDimensionNumbers(site.op.attributes["dimension_numbers"])
    build = SignatureBuilder()
    operand, indices = site.operands
    slices = site.integers("slice_sizes")
    read, rows = build.axes(operand), build.axes(indices)
    for axis, row in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        read[axis] = rows[row]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [
        read[axis] if slices[axis] == size else build.axis(slices[axis])
        for axis, size in enumerate(operand)
        if axis not in dropped
    ]
    batch = [axis for number, axis in enumerate(rows) if number != numbers.index_vector_dim]
    made = _interleaved(len(site.results[0]), list(numbers.offset_dims), kept, batch)
    return build.signature([read, rows], [made], linear=[linear_in(0, kinds=ANY)])


@signature("stablehlo.scatter")
def scatter(site: OpSite) -> Signature:
    """Returns the signature of a scatter: a gather's, with index rows as terms of the result."""
    numbers = stablehlo.ScatterDimensionNumbers(site.op.attributes["scatter_dimension_numbers"])
    build = SignatureBuilder()
    count = len(site.results)
    operand, indices, updates = site.operands[0], site.operands[count], site.operands[count + 1]
    read, rows, made = build.axes(operand), build.axes(indices), build.axes(operand)
    for axis, row in zip(
        numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True
    ):
        read[axis] = made[axis] = rows[row]
    window = [
        axis
        for axis in range(len(operand))
        if axis not in {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    ]
    kept: list[Axis] = []
    for axis, number in zip(window, numbers.update_window_dims, strict=True):
        if updates[number] == operand[axis]:
            made[axis] = read[axis]
            kept.append(read[axis])
        else:
            kept.append(build.axis(updates[number]))
    batch = [axis for number, axis in enumerate(rows) if number != numbers.index_vector_dim]
    update = _interleaved(len(updates), list(numbers.update_window_dims), kept, batch)
    reductions, linear = {}, []
    if count == 1:
        combine = combine_of(site)
        passed = {factor for axis in made for factor in axis}
        if combine is not None:
            terms = FactorReduction(combine, frozenset({0}))
            reductions = {
                factor: terms for axis in batch for factor in axis if factor not in passed
            }
        linear = _linear(site)
    return build.signature(
        [read] * count + [rows] + [update] * count, [made] * count, reductions, linear
    )


def _linear(site: OpSite) -> list[LinearGroup]:
    """Returns the linear group of operand and updates, if each element is added or written once."""
    combine = combine_of(site)
    if combine is not None:
        return [linear_in(0, 2, kinds=frozenset({combine}))]
    unique = walk.readable_attributes(site.op).get("unique_indices")
    if replaces(site) and isinstance(unique, ir.BoolAttr) and unique.value:
        return [linear_in(0, 2, kinds=ANY)]
    return []


def _interleaved(rank: int, places: list[int], placed: list[Axis], rest: list[Axis]) -> list[Axis]:
    """Returns axes at their places, and the others, in order, at the remaining ones."""
    by_place, others = dict(zip(places, placed, strict=True)), iter(rest)
    return [by_place[number] if number in by_place else next(others) for number in range(rank)]
