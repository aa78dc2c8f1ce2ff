"""Recognises gathers and scatters of one element a row: the chosen axis, and the label.

Integers that are known before the program runs distinguish the rows, as in JAX's indexing
(`KnownNumbers`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.constants import ConstantValues, made_value
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.values import defining_op, shape_of

_ATTRIBUTES = frozenset(
    {
        "dimension_numbers",
        "indices_are_sorted",
        "scatter_dimension_numbers",
        "slice_sizes",
        "unique_indices",
    }
)
"""The attributes of every gather and scatter; one with others, e.g. for the host, is left as is."""


class Access(enum.StrEnum):
    """The access to the one element of each row."""

    READ = "read"
    ADDED_TO = "added to"
    WRITTEN = "written"


@dataclass(frozen=True)
class RowElement:
    """A gather or scatter of one element of each row.

    Attributes:
      op: the gather or scatter.
      access: the kind of access.
      axis: the operand's axis of the elements of a row.
      rows: each axis of the operand that distinguishes rows, in order, and that of the indices.
      label: the number of an index vector that chooses; the others count rows.
      vectors: the axis of the indices along which the index vectors are.
      places: by axis of the gathered or scattered value, the axis of the indices; None for one of a
        single element that the indices do not have.
      counts_rows: indices hold the numbers of rows; else rows are batching dimensions.
    """

    op: ir.Operation
    access: Access
    axis: int
    rows: tuple[tuple[int, int], ...]
    label: int
    vectors: int
    places: tuple[int | None, ...]
    counts_rows: bool

    @property
    def operand(self) -> ir.Value:
        """Returns the value that is gathered from, or scattered into."""
        return self.op.operands[0]

    @property
    def length(self) -> int:
        """Returns the length of a row."""
        return shape_of(self.operand)[self.axis]

    @property
    def row_axes(self) -> list[int]:
        """Returns the axes of the operand that distinguish rows."""
        return [axis for axis, _ in self.rows]

    @property
    def row_places(self) -> list[int]:
        """Returns the axes of the indices that distinguish rows."""
        return [place for _, place in self.rows]

    @property
    def indices(self) -> ir.Value:
        return self.op.operands[1]


@dataclass(frozen=True)
class _Numbers:
    """The dimension numbers that gathers and scatters share."""

    windows: Sequence[int]
    batching: Sequence[int]
    batching_of_indices: Sequence[int]
    indexed: Sequence[int]
    vectors: int


def row_element(op: ir.Operation, known: KnownNumbers) -> RowElement | None:
    """Reads the gather or scatter as one of one element a row; None where it is of larger slices.

    Raises NotPossibleError where it is of single elements, but not of one a row.
    """
    if op.name == "stablehlo.gather":
        if any(size != 1 for size in walk.integers(op, "slice_sizes")):
            return None
        return _found(op, op.results[0], _of_gather(op), Access.READ, known)
    if op.name == "stablehlo.scatter" and len(op.results) == 1:
        updates, numbers = op.operands[2], _of_scatter(op)
        if any(shape_of(updates)[axis] != 1 for axis in numbers.windows):
            return None
        return _found(op, updates, numbers, _access_of_scatter(op), known)
    return None


def _found(
    op: ir.Operation, elements: ir.Value, numbers: _Numbers, access: Access, known: KnownNumbers
) -> RowElement | None:
    if more := set(walk.attribute_names(op)) - _ATTRIBUTES:
        raise NotPossibleError(f"it has attributes for XLA: {', '.join(sorted(more))}")
    shape, index_shape = shape_of(op.operands[0]), shape_of(op.operands[1])
    rows = dict(zip(numbers.batching, numbers.batching_of_indices, strict=True))
    batch = [axis for axis in range(len(index_shape)) if axis != numbers.vectors]
    labels = list(range(len(numbers.indexed)))
    if len(labels) > 1:
        for number, axis in enumerate(numbers.indexed):
            found = known.component(op.operands[1], numbers.vectors, number)
            if found is None:
                continue
            if shape[axis] == 1 and not found.any():
                labels.remove(number)  # its one element
                continue
            counted = _counted_axis(found, shape[axis])
            if counted is not None and batch[counted] not in rows.values():
                rows[axis] = batch[counted]
                labels.remove(number)
    if not labels:
        return None  # every element's place is known: there is no choice
    if len(labels) > 1:
        raise NotPossibleError("its indices choose along several axes, and none counts rows")
    axis = numbers.indexed[labels[0]]
    if any(size != 1 for n, size in enumerate(shape) if n != axis and n not in rows):
        raise NotPossibleError("not every row has an element")
    taken = {axis for axis in batch if index_shape[axis] != 1 and axis not in rows.values()}
    if taken:
        raise NotPossibleError("it takes several elements of a row")
    others = iter(batch)
    places = (
        None if number in numbers.windows else next(others)
        for number in range(len(shape_of(elements)))
    )
    return RowElement(
        op=op,
        access=access,
        axis=axis,
        rows=tuple(sorted(rows.items())),
        label=labels[0],
        vectors=numbers.vectors,
        places=tuple(places),
        counts_rows=len(numbers.indexed) > 1,
    )


def _counted_axis(numbers: Numbers, size: int) -> int | None:
    """Returns the axis of so many elements along which they are 0, 1, 2, ...; None if none is."""
    for axis, length in enumerate(numbers.shape):
        if length == size and (numbers == counting(numbers.ndim, axis, size)).all():
            return axis
    return None


def _of_gather(op: ir.Operation) -> _Numbers:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    return _Numbers(
        windows=list(numbers.offset_dims),
        batching=list(numbers.operand_batching_dims),
        batching_of_indices=list(numbers.start_indices_batching_dims),
        indexed=list(numbers.start_index_map),
        vectors=numbers.index_vector_dim,
    )


def _of_scatter(op: ir.Operation) -> _Numbers:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    return _Numbers(
        windows=list(numbers.update_window_dims),
        batching=list(numbers.input_batching_dims),
        batching_of_indices=list(numbers.scatter_indices_batching_dims),
        indexed=list(numbers.scattered_dims_to_operand_dims),
        vectors=numbers.index_vector_dim,
    )


def _access_of_scatter(op: ir.Operation) -> Access:
    """Returns the access by the combiner. Raises NotPossibleError for other combiners."""
    block = op.regions[0].blocks[0]
    body = [view.operation for view in block.operations]
    current, update = block.arguments
    returned = list(body[-1].operands)
    if returned == [update]:
        return Access.WRITTEN
    first = body[0]
    is_sum = first.name == "stablehlo.add" and returned == list(first.results)
    if is_sum and list(first.operands) in ([current, update], [update, current]):
        return Access.ADDED_TO
    raise NotPossibleError("it neither adds nor writes its updates")


Numbers = np.ndarray[Any, np.dtype[Any]]

_MOST_ELEMENTS = 2**24
"""Larger values are not computed: no batch has so many rows."""


class KnownNumbers:
    """Integers that follow from constants alone, as arrays."""

    def __init__(self) -> None:
        self._constants = ConstantValues()
        self._known: dict[ir.Value, Numbers | None] = {}

    def of(self, value: ir.Value) -> Numbers | None:
        """Returns the value's elements; None where they are unknown."""
        if value not in self._known:
            self._known[value] = self._computed(value)
        return self._known[value]

    def component(self, vectors: ir.Value, axis: int, number: int) -> Numbers | None:
        """Returns one number of each of the index vectors along an axis; None where unknown.

        The vectors' other numbers need not be known.
        """
        op = defining_op(made_value(vectors))
        if op is not None and op.name == "stablehlo.concatenate":
            if ir.IntegerAttr(op.attributes["dimension"]).value == axis:
                for part in op.operands:
                    length = ir.RankedTensorType(part.type).shape[axis]
                    if number < length:
                        return self.component(part, axis, number)
                    number -= length
        elif op is not None and op.name == "stablehlo.clamp":
            low, middle, high = (self._bound(each, axis, number) for each in op.operands)
            if low is None or middle is None or high is None:
                return None
            return _clamped(low, middle, high)
        found = self.of(vectors)
        return None if found is None else np.take(found, number, axis)

    def _bound(self, value: ir.Value, axis: int, number: int) -> Numbers | None:
        """Returns one number of a clamp's operand, which may be a scalar; None if unknown."""
        has_axes = ir.RankedTensorType(value.type).rank
        return self.component(value, axis, number) if has_axes else self.of(value)

    def _computed(self, value: ir.Value) -> Numbers | None:
        made: dict[ir.Value, Numbers] = {}
        for op in self._constants.chain(value) or ():
            inputs = [made[made_value(operand)] for operand in op.operands]
            found = _evaluated(op, inputs)
            if found is None:
                return None
            made[op.results[0]] = found
        return made.get(made_value(value))


def _evaluated(op: ir.Operation, inputs: Sequence[Numbers]) -> Numbers | None:
    """Evaluates an operation on integers; None where hloom does not support it."""
    type_ = ir.RankedTensorType(op.results[0].type)
    dtype, shape = _dtype(type_.element_type), tuple(type_.shape)
    evaluate = _EVALUATED.get(op.name)
    if evaluate is None or dtype is None or math.prod(shape) > _MOST_ELEMENTS:
        return None
    with np.errstate(over="ignore"):
        found = evaluate(op, shape, *inputs)
    return None if found is None else found.astype(dtype)


def _dtype(element: ir.Type) -> np.dtype[Any] | None:
    """Returns the numpy type of integers of a byte or more and of booleans; numpy has no others."""
    if not isinstance(element, ir.IntegerType):
        return None
    if element.width == 1:
        return np.dtype(bool)
    if element.width not in (8, 16, 32, 64):
        return None
    return np.dtype(f"{'uint' if element.is_unsigned else 'int'}{element.width}")


def _constant(op: ir.Operation, shape: Sequence[int]) -> Numbers | None:
    attribute = walk.readable_attributes(op)["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    if attribute.is_splat:
        splat = attribute.get_splat_value()
        number = ir.IntegerAttr(splat).value if isinstance(splat, ir.IntegerAttr) else None
        return None if number is None else np.broadcast_to(np.asarray(number), shape)
    return np.asarray(attribute)


def _iota(op: ir.Operation, shape: Sequence[int]) -> Numbers:
    axis = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    return np.broadcast_to(counting(len(shape), axis, shape[axis]), shape)


def counting(rank: int, axis: int, size: int) -> Numbers:
    """Returns 0, 1, 2, ... along an axis; the other axes are of one element."""
    return np.arange(size).reshape([size if each == axis else 1 for each in range(rank)])


def _broadcast(op: ir.Operation, shape: Sequence[int], operand: Numbers) -> Numbers:
    axes = walk.integers(op, "broadcast_dimensions")
    in_order = operand.transpose(np.argsort(axes))
    sizes = dict(zip(sorted(axes), in_order.shape, strict=True))
    return np.broadcast_to(
        in_order.reshape([sizes.get(axis, 1) for axis in range(len(shape))]), shape
    )


def _compared(op: ir.Operation, _: Sequence[int], one: Numbers, other: Numbers) -> Numbers:
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    compare: Callable[[Numbers, Numbers], Numbers] = {
        "EQ": np.equal,
        "NE": np.not_equal,
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
    }[direction]
    return compare(one, other)


def _clamped(low: Numbers, middle: Numbers, high: Numbers) -> Numbers:
    return np.minimum(np.maximum(middle, low), high)


def _by(function: Callable[..., Numbers]) -> Callable[..., Numbers]:
    """Applies a function elementwise."""
    return lambda op, shape, *operands: function(*operands)


_EVALUATED: dict[str, Callable[..., Numbers | None]] = {
    "stablehlo.add": _by(np.add),
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.clamp": _by(_clamped),
    "stablehlo.compare": _compared,
    "stablehlo.constant": _constant,
    "stablehlo.convert": _by(np.asarray),
    "stablehlo.iota": _iota,
    "stablehlo.maximum": _by(np.maximum),
    "stablehlo.minimum": _by(np.minimum),
    "stablehlo.multiply": _by(np.multiply),
    "stablehlo.reshape": lambda op, shape, operand: operand.reshape(shape),
    "stablehlo.select": _by(np.where),
    "stablehlo.subtract": _by(np.subtract),
}
"""By operation, its function, whose results are then converted to the operation's type."""
