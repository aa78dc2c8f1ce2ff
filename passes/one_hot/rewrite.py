"""Writes a gather or scatter of one element a row as work on whole rows, or with its rows batched.

Both give the same to the bit. The element of a row is found as the sum of its bits, read as an
integer, and of a 0 for each other element: a sum of floats would give +0 for -0, and 0 for a
subnormal number that the processor flushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.purity import erase_unread
from ..ir.build import broadcast, compare, constant, converted, reduce, reshaped, typed
from ..ir.erase import erase
from ..ir.values import defining_op, element_of, shape_of
from .elements import Access, RowElement

_LABEL_BITS = 32
"""Labels of fewer bits may not count all positions of a row."""


def select_in_rows(element: RowElement) -> None:
    """Compares each position in a row with the label, and selects by that."""
    op = element.op
    with op.location, ir.InsertionPoint(op):
        labels = _widened(_label_of_each_row(element))
        if element.access is Access.READ:
            chosen = _is_chosen(element, _clamped(labels, element.length))
            new = _as_gathered(element, _chosen_of_row(element.operand, chosen, element.axis))
        else:
            chosen = _is_chosen(element, labels)
            new = stablehlo.select(chosen, _updated(element), element.operand)
    _replace(op, new)


def batch_rows(element: RowElement) -> None:
    """Distinguishes rows by batching dimensions, no longer by numbers in the indices."""
    op, rank = element.op, len(element.rows)
    single = [n for n in range(len(shape_of(element.operand))) if n not in element.row_axes]
    numbers: tuple[Any, ...] = (
        [],
        single,
        element.row_axes,
        list(range(rank)),
        [element.axis],
        rank,
    )
    with op.location, ir.InsertionPoint(op):
        indices = _label_of_each_row(element, 1)
        if element.access is Access.READ:
            gathered = stablehlo.gather(
                element.operand,
                indices,
                stablehlo.GatherDimensionNumbers.get(*numbers),
                [1] * len(shape_of(element.operand)),
                indices_are_sorted=False,
            )
            new = _as_gathered(element, gathered)
        else:
            updates = _by_row(element, op.operands[2], element.places)
            scatter = op.clone().operation
            scatter.operands[1], scatter.operands[2] = indices, updates
            scatter.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)
            scatter.attributes["scatter_dimension_numbers"] = stablehlo.ScatterDimensionNumbers.get(
                *numbers
            )
            new = scatter.results[0]
    _replace(op, new)


def _labels(element: RowElement) -> ir.Value:
    """Returns the label of each row: the indices, or a part, with the axes of the indices."""
    vectors, shape = element.vectors, shape_of(element.indices)
    if vectors == len(shape) or shape[vectors] == 1:
        return element.indices
    parts = defining_op(element.indices)
    if parts is not None and parts.name == "stablehlo.concatenate":
        along = ir.IntegerAttr(parts.attributes["dimension"]).value
        single = all(shape_of(part)[vectors] == 1 for part in parts.operands)
        if along == vectors and single:
            return parts.operands[element.label]
    starts, limits = [0] * len(shape), list(shape)
    starts[vectors], limits[vectors] = element.label, element.label + 1
    return stablehlo.slice(element.indices, starts, limits, [1] * len(shape))


def _label_of_each_row(element: RowElement, *last: int) -> ir.Value:
    """Returns labels by the axes of the operand that distinguish rows, and axes of one element."""
    labels = _labels(element)
    return _by_row(element, labels, range(len(shape_of(labels))), last)


def _by_row(
    element: RowElement, value: ir.Value, axes: Sequence[int | None], last: Sequence[int] = ()
) -> ir.Value:
    """Returns a value with an element for each row, with these axes of the indices, in a form."""
    wanted = [axes.index(axis) for axis in element.row_places]
    order = [*wanted, *(n for n in range(len(axes)) if n not in wanted)]
    shape = shape_of(value)
    return reshaped(_transposed(value, order), [*(shape[axis] for axis in wanted), *last])


def _as_gathered(element: RowElement, by_row: ir.Value) -> ir.Value:
    """Returns a value with an element for each row, in the form of the gather's result."""
    order = [int(axis) for axis in np.argsort(element.row_places)]
    return reshaped(_transposed(by_row, order), shape_of(element.op.results[0]))


def _widened(labels: ir.Value) -> ir.Value:
    """Returns the labels in a type that counts all positions of a row."""
    if ir.IntegerType(element_of(labels)).width >= _LABEL_BITS:
        return labels
    return converted(labels, ir.IntegerType.get_signless(_LABEL_BITS))


def _clamped(labels: ir.Value, length: int) -> ir.Value:
    """Returns the labels as a gather clamps those outside of the row."""
    first, last = (constant(typed(labels, []), number) for number in (0, length - 1))
    return stablehlo.clamp(first, labels, last)


def _is_chosen(element: RowElement, labels: ir.Value) -> ir.Value:
    """Whether an element of the operand is the one that its row's label chooses."""
    shape = shape_of(element.operand)
    counted = stablehlo.iota(typed(labels, [element.length]), 0)
    positions = broadcast(counted, shape, [element.axis])
    return compare(positions, broadcast(labels, shape, element.row_axes), "EQ")


def _chosen_of_row(rows: ir.Value, chosen: ir.Value, axis: int) -> ir.Value:
    """Returns the chosen element of each row."""
    element = element_of(rows)
    if isinstance(element, ir.IntegerType):
        return _sum_of_chosen(rows, chosen, axis)
    integer = ir.IntegerType.get_signless(ir.FloatType(element).width)
    bits = stablehlo.bitcast_convert(typed(rows, element=integer), rows)
    found = _sum_of_chosen(bits, chosen, axis)
    return stablehlo.bitcast_convert(typed(found, element=element), found)


def _sum_of_chosen(rows: ir.Value, chosen: ir.Value, axis: int) -> ir.Value:
    """Returns the sum of the chosen integers; for booleans, whether one is chosen."""
    zero = constant(typed(rows, []), 0)
    kept = stablehlo.select(chosen, rows, broadcast(zero, shape_of(rows), []))
    is_boolean = ir.IntegerType(element_of(rows)).width == 1
    return reduce(kept, [axis], zero, stablehlo.or_ if is_boolean else stablehlo.add)


def _updated(element: RowElement) -> ir.Value:
    """Returns the new values of the chosen elements, at every place of the operand."""
    op, operand = element.op, element.operand
    updates = _by_row(element, op.operands[2], element.places)
    scalar = _same_everywhere(operand)
    if element.access is Access.ADDED_TO and scalar is not None:
        # Done once for each row.
        updates = stablehlo.add(broadcast(scalar, shape_of(updates), []), updates)
    spread = broadcast(updates, shape_of(operand), element.row_axes)
    if element.access is Access.ADDED_TO and scalar is None:
        return stablehlo.add(operand, spread)
    return spread


def _same_everywhere(value: ir.Value) -> ir.Value | None:
    """Returns the one element that a value consists of; None where that is unknown."""
    op = defining_op(value)
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return None
    return op.operands[0] if not shape_of(op.operands[0]) else None


def _transposed(value: ir.Value, order: list[int]) -> ir.Value:
    """Returns a value with its axes in another order; axes of one element may be anywhere."""
    shape = shape_of(value)
    long = [axis for axis in order if shape[axis] != 1]
    return value if long == sorted(long) else stablehlo.transpose(value, order)


def _replace(op: ir.Operation, new: ir.Value) -> None:
    """Lets readers read another value, and erases operations without readers."""
    op.results[0].replace_all_uses_with(new)
    makers = [defining_op(operand) for operand in op.operands]
    erase(op)
    erase_unread(maker for maker in makers if maker is not None)
