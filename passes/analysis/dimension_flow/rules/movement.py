"""Rules of operations that move elements to places known before the program runs, or by an offset.

Each is linear in what it moves, and commutes with a maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..signature import (
    ANY,
    Axis,
    Signature,
    SignatureBuilder,
    linear_in,
)
from .site import OpSite

_MOVED = (linear_in(0, kinds=ANY),)


def broadcast(site: OpSite) -> Signature:
    build = SignatureBuilder()
    [before], [after] = site.operands, site.results
    made = build.axes(after)
    read: list[Axis] = [
        made[axis] if size == after[axis] else build.axis(size)
        for size, axis in zip(before, site.integers("broadcast_dimensions"), strict=True)
    ]
    return build.signature([read], [made], linear=_MOVED)


def transpose(site: OpSite) -> Signature:
    build = SignatureBuilder()
    read = build.axes(site.operands[0])
    made = [read[axis] for axis in site.integers("permutation")]
    return build.signature([read], [made], linear=_MOVED)


def reverse(site: OpSite) -> Signature:
    reversed_ = set(site.integers("dimensions"))
    return _some_axes(site, [axis not in reversed_ for axis in range(len(site.operands[0]))])


def slice_(site: OpSite) -> Signature:
    [before], [after] = site.operands, site.results
    return _some_axes(site, [size == left for size, left in zip(before, after, strict=True)])


def dynamic_slice(site: OpSite) -> Signature:
    """A slice as long as the axis starts at 0, whatever its index says."""
    before, after = site.operands[0], site.results[0]
    return _some_axes(site, [size == left for size, left in zip(before, after, strict=True)])


def _some_axes(site: OpSite, passed: Sequence[bool]) -> Signature:
    """Of the first operand some axes are passed through; others are of no rank."""
    build = SignatureBuilder()
    read = build.axes(site.operands[0])
    made = [
        axis if kept else build.axis(size)
        for axis, kept, size in zip(read, passed, site.results[0], strict=True)
    ]
    rest: list[list[Axis]] = [[] for _ in site.operands[1:]]
    return build.signature([read, *rest], [made], linear=_MOVED)


def pad(site: OpSite) -> Signature:
    """A term of a sum is padded with zeros, or with a term of the padding."""
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


def dynamic_update_slice(site: OpSite) -> Signature:
    """Along an axis that it is as long as, an update starts at 0, whatever its index says."""
    build = SignatureBuilder()
    whole, part, *indices = site.operands
    read, update, made = build.axes(whole), build.axes(part), build.axes(whole)
    for axis, (size, updated) in enumerate(zip(whole, part, strict=True)):
        if size == updated:
            update[axis] = made[axis] = read[axis]
    scalars: list[list[Axis]] = [[] for _ in indices]
    group = linear_in(0, 1, kinds=ANY)
    return build.signature([read, update, *scalars], [made], linear=[group])


def reshape(site: OpSite) -> Signature:
    """The factors are the finest that both shapes are products of, from the major side."""
    build = SignatureBuilder()
    [before], [after] = site.operands, site.results
    read, made = common_factors(build, before, after)
    return build.signature([read], [made], linear=_MOVED)


def common_factors(
    build: SignatureBuilder, before: Sequence[int], after: Sequence[int]
) -> tuple[list[Axis], list[Axis]]:
    """The axes of two shapes of as many elements, in factors that they share where they can."""
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
    """Past axes that share nothing, to where both shapes have as many elements behind them."""
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
