"""Transposes values to the order of axes that the kernel takes, and its results back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jax.extend.mlir import ir

from ..ir.build import converted, reshaped, transposed
from ..ir.values import element_of, shape_of
from .limits import source_of
from .site import SCORES, FusedKernel, Label, Labelled, Labels


def element_type(name: str) -> ir.Type:
    """Returns the element type that MLIR calls so."""
    return ir.Type.parse(name)


def of_queries(kernel: FusedKernel, kind: str) -> Labels:
    """Returns the kernel's axes of queries, or of the output: batch, positions, heads, elements."""
    axes = kernel.axes
    positions = () if axes.query is None else (axes.query,)
    return (*_scores(axes.batch, positions, axes.heads + axes.group), kernel.labels(kind))


def of_keys(kernel: FusedKernel, kind: str) -> Labels:
    """Returns the kernel's axes of keys, or of values: batch, positions, heads, elements."""
    axes = kernel.axes
    return (*_scores(axes.batch, (axes.key,), axes.heads), kernel.labels(kind))


def of_bias(kernel: FusedKernel) -> Labels:
    """Returns the kernel's axes of a bias: batch, heads, queries, keys."""
    axes = kernel.axes
    positions = () if axes.query is None else (axes.query,)
    return _scores(axes.batch, axes.heads + axes.group, positions, (axes.key,))


def _scores(*groups: Sequence[int]) -> Labels:
    return tuple(tuple((SCORES, axis) for axis in group) for group in groups)


def arranged(given: Labelled, order: Labels, kernel: FusedKernel) -> ir.Value:
    """Returns a value in the kernel's order of axes, with its type of elements."""
    value = given.value
    narrow = source_of(value)
    if str(element_of(narrow)) == kernel.element:
        value = narrow
    flat = [label for group in given.labels for label in group]
    wanted = [label for group in order for label in group if label in flat]
    value = reshaped(value, [kernel.size(label) for label in flat])
    value = transposed(value, [flat.index(label) for label in wanted])
    held = {*wanted}
    value = reshaped(
        value, [math.prod(kernel.size(x) for x in group if x in held) for group in order]
    )
    return converted(value, element_type(kernel.element))


def restored(
    value: ir.Value, order: Labels, labels: Labels, sizes: Mapping[Label, int], like: ir.Value
) -> ir.Value:
    """Returns a result of the kernel in a program's order of axes, with the type of a value."""
    have = [label for group in order for label in group]
    wanted = [label for group in labels for label in group]
    rest = [label for label in have if label not in wanted]  # of one element
    value = reshaped(value, [sizes[label] for label in have])
    value = transposed(value, [have.index(label) for label in wanted + rest])
    return converted(reshaped(value, shape_of(like)), element_of(like))


def all_sizes(kernel: FusedKernel) -> Mapping[Label, int]:
    """Returns the sizes of all axes by their labels."""
    scores = {(SCORES, axis): size for axis, size in enumerate(kernel.axes.sizes)}
    return scores | dict(kernel.sizes)
