"""Rules of gathers and scatters: addresses that are data."""

from __future__ import annotations

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ....ir import walk
from ..signature import (
    ANY,
    Axis,
    FactorReduction,
    LinearGroup,
    Signature,
    SignatureBuilder,
    linear_in,
)
from .site import OpSite, combine_of, replaces


def gather(site: OpSite) -> Signature:
    """Rows of indices are passed through, and axes of the operand that a slice has all of."""
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


def scatter(site: OpSite) -> Signature:
    """Like a gather; rows of indices that the result does not have are terms of it."""
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
    """In its operand and its updates together, where it adds or writes each element once."""
    combine = combine_of(site)
    if combine is not None:
        return [linear_in(0, 2, kinds=frozenset({combine}))]
    unique = walk.readable_attributes(site.op).get("unique_indices")
    if replaces(site) and isinstance(unique, ir.BoolAttr) and unique.value:
        return [linear_in(0, 2, kinds=ANY)]
    return []


def _interleaved(rank: int, places: list[int], placed: list[Axis], rest: list[Axis]) -> list[Axis]:
    """Axes at their places, and the others, in order, at those that are left."""
    by_place, others = dict(zip(places, placed, strict=True)), iter(rest)
    return [by_place[number] if number in by_place else next(others) for number in range(rank)]
