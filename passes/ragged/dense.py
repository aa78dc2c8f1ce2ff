"""Finds ragged products that JAX wrote as dense ones, as it does for CPUs.

There each operand of rows is repeated for every group, with zeros for the rows of others::

    %ends = cumulative sum of %sizes              %starts = %ends, one place on, from 0
    %mask = %starts <= iota and iota < %ends      // G x M x K
    %0 = stablehlo.select %mask, broadcast(%rows), 0
    %1 = stablehlo.dot_general %0, %weights       // contracted along the groups as well

Where each place of a batch has sizes of its own, all these have the batch's axes first, and a
transpose moves the groups before them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jax.extend.mlir import ir

from ..analysis.constants import is_zero_constant
from ..ir import walk
from ..ir.products import ProductAxes
from ..ir.values import defining_op, shape_of
from .product import Factor, RaggedProduct, checked, factor, sizes_of_all

_COPIES = ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.slice")
"""Operations whose results on zeros are zeros."""


def of_product(op: ir.Operation) -> RaggedProduct | None:
    """Returns the ragged product that a dense one computes; None where it computes none.

    Raises NotPossibleError where it does, and cannot be rewritten.
    """
    left = _Spread.of(op.operands[0])
    if left is None or "algorithm" in op.attributes:
        return None
    axes = ProductAxes.of(op)
    contracting, batching = axes.left.contracted, axes.left.batch
    others, other_batching = axes.right.contracted, axes.right.batch
    spread = None
    if 0 in contracting and left.rows not in (*contracting, *batching):
        place = contracting.index(0)
        right = factor(op.operands[1], _without(others, place), other_batching, None, others[place])
        rows = left.factor(_without(contracting, place), batching)
    elif batching[:1] == (0,) and left.rows in contracting:
        spread = _Spread.of(op.operands[1])
        if spread is None or other_batching[:1] != (0,) or spread.sizes != left.sizes:
            return None
        if others[contracting.index(left.rows)] != spread.rows:
            return None
        rows = left.factor(contracting, batching[1:])
        right = spread.factor(others, other_batching[1:])
    else:
        return None
    precision = walk.readable_attributes(op).get("precision_config")
    product = RaggedProduct(op, rows, right, left.sizes, precision)
    prefix = product.prefix
    if left.prefix != prefix.left or (spread is not None and spread.prefix != prefix.right):
        return None
    return checked(replace(product, sizes=sizes_of_all(left.sizes)))


def _without(axes: tuple[int, ...], place: int) -> tuple[int, ...]:
    return axes[:place] + axes[place + 1 :]


@dataclass(frozen=True)
class _Spread:
    """Rows repeated for every group along a new first axis, with zeros for those of others.

    Attributes:
      value: the rows.
      element: the element type in which they are multiplied.
      rows: the axis of the rows, after that of the groups.
      prefix: the axes of ``value`` that the sizes have before that of the groups.
      sizes: how many rows each group has.
    """

    value: ir.Value
    element: ir.Type
    rows: int
    prefix: tuple[int, ...]
    sizes: ir.Value

    @classmethod
    def of(cls, value: ir.Value) -> _Spread | None:
        element = ir.RankedTensorType(value.type).element_type
        convert = _made_by(value, "stablehlo.convert")
        kept, order = _before_transposes(value if convert is None else convert.operands[0])
        select = _made_by(kept, "stablehlo.select")
        if select is None:
            return None
        mask, kept, dropped = select.operands
        spread = _made_by(kept, "stablehlo.broadcast_in_dim")
        if spread is None or not _is_zero(dropped) or shape_of(mask) != shape_of(kept):
            return None
        whole, whole_order = _before_transposes(spread.operands[0])
        along = walk.integers(spread, "broadcast_dimensions")
        lengths = [shape_of(kept)[axis] for axis in along]
        if lengths != shape_of(spread.operands[0]) or sorted(along) != sorted(order[1:]):
            return None
        # From an axis of the multiplied value to that of the rows: the one before it.
        if [whole_order[along.index(axis)] for axis in order[1:]] != list(range(len(along))):
            return None
        found = _rows_in_groups(mask)
        if found is None:
            return None
        rows, (*prefix, groups), sizes = found
        if groups != order[0]:
            return None
        places = tuple(order.index(axis) - 1 for axis in prefix)
        return cls(whole, element, order.index(rows), places, sizes)

    def factor(self, contracting: tuple[int, ...], batching: tuple[int, ...]) -> Factor:
        """Returns the unrepeated rows, without the axis of the groups before theirs."""
        contracting, batching = (
            tuple(axis - 1 for axis in axes) for axes in (contracting, batching)
        )
        return Factor(self.value, self.element, contracting, batching, self.rows - 1)


def _before_transposes(value: ir.Value) -> tuple[ir.Value, list[int]]:
    """Returns the source of transposes, and the axis of it for each axis of the result."""
    order = list(range(len(shape_of(value))))
    while (op := _made_by(value, "stablehlo.transpose")) is not None:
        axes = walk.integers(op, "permutation")
        order = [axes[axis] for axis in order]
        value = op.operands[0]
    return value, order


def _rows_in_groups(mask: ir.Value) -> tuple[int, list[int], ir.Value] | None:
    """Returns the axis of the rows, those of the sizes, and the sizes in a mask of groups."""
    both = _made_by(mask, "stablehlo.and")
    if both is None:
        return None
    after = _comparison(both.operands[0], "LE")
    before = _comparison(both.operands[1], "LT")
    if after is None or before is None:
        return None
    starts, first = after
    second, ends = before
    axis = _counted_axis(first)
    starts_of_groups, axes_of_starts = _repeated(starts)
    ends_of_groups, axes = _repeated(ends)
    if axis is None or axis in axes or axis != _counted_axis(second) or axes != axes_of_starts:
        return None
    if not axes or [shape_of(mask)[each] for each in axes] != shape_of(ends_of_groups):
        return None
    sizes = _summed(ends_of_groups)
    if sizes is None or not _is_one_place_on(starts_of_groups, ends_of_groups, sizes):
        return None
    return axis, axes, sizes


def _comparison(value: ir.Value, direction: str) -> tuple[ir.Value, ir.Value] | None:
    op = _made_by(value, "stablehlo.compare")
    if op is None or f" {direction}>" not in str(op.attributes["comparison_direction"]):
        return None
    return op.operands[0], op.operands[1]


def _counted_axis(value: ir.Value) -> int | None:
    """Returns the axis that a value counts along from 0; None where it is no such value."""
    source, axes = _repeated(value)
    iota = _made_by(source, "stablehlo.iota")
    if iota is None:
        return None
    axis = ir.IntegerAttr(iota.attributes["iota_dimension"]).value
    return axes[axis] if shape_of(source)[axis] == shape_of(value)[axes[axis]] else None


def _repeated(value: ir.Value) -> tuple[ir.Value, list[int]]:
    """Returns the source of broadcasts, and the axis of the result for each axis of it."""
    shape = shape_of(value)
    axes = list(range(len(shape)))
    while (op := _made_by(value, "stablehlo.broadcast_in_dim")) is not None:
        axes = [axes[axis] for axis in walk.integers(op, "broadcast_dimensions")]
        value = op.operands[0]
    return value, axes


def _summed(ends: ir.Value) -> ir.Value | None:
    """Returns the value of which this is the cumulative sum along the last axis, if any."""
    op = _made_by(ends, "stablehlo.reduce_window")
    if op is None or len(op.operands) != 2 or not _is_zero(op.operands[1]):
        return None
    *places, length = shape_of(ends)
    body = [view.operation.name for view in op.regions[0].blocks[0].operations]
    as_sum = (
        body == ["stablehlo.add", "stablehlo.return"]
        and walk.integers(op, "window_dimensions") == [*[1] * len(places), length]
        and all(
            set(walk.integers(op, name, [1])) == {1}
            for name in ("window_strides", "base_dilations", "window_dilations")
        )
        and "padding" in op.attributes
        and _numbers(op.attributes["padding"])
        == [*(0 for _ in places for _ in range(2)), length - 1, 0]
    )
    return op.operands[0] if as_sum else None


def _is_one_place_on(starts: ir.Value, ends: ir.Value, sizes: ir.Value) -> bool:
    """Whether each group starts where the one before it ends, and the first one at 0."""
    op = defining_op(starts)
    if op is None:
        return False
    if op.name == "stablehlo.subtract":
        return [*op.operands] == [ends, sizes]
    if op.name != "stablehlo.concatenate" or len(op.operands) != 2:
        return False
    first, rest = op.operands
    cut = _made_by(rest, "stablehlo.slice")
    *places, length = shape_of(ends)
    return (
        ir.IntegerAttr(op.attributes["dimension"]).value == len(places)
        and shape_of(first) == [*places, 1]
        and _is_zero(first)
        and cut is not None
        and cut.operands[0] == ends
        and set(walk.integers(cut, "start_indices")) == {0}
        and walk.integers(cut, "limit_indices") == [*places, length - 1]
        and set(walk.integers(cut, "strides")) == {1}
    )


def _is_zero(value: ir.Value) -> bool:
    """Whether a value is computed from a constant zero by broadcasts and slices."""
    op = defining_op(value)
    while op is not None and op.name in _COPIES:
        op = defining_op(op.operands[0])
    return op is not None and is_zero_constant(op)


def _made_by(value: ir.Value, name: str) -> ir.Operation | None:
    op = defining_op(value)
    return op if op is not None and op.name == name else None


def _numbers(attribute: ir.Attribute) -> list[int]:
    numbers = ir.DenseIntElementsAttr(attribute)
    return [int(numbers[place]) for place in range(len(numbers))]
