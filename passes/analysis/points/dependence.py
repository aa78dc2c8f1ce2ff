"""The axes that values depend on, by the form of their code, and whether on a difference alone.

Unlike an evaluation at samples, these answers hold at every position.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.products import ProductAxes
from ...ir.values import element_of, shape_of
from .evaluator import Scope
from .operations import How, is_splat

Axes = frozenset[int]


def axes_of(
    scope: Scope,
    value: ir.Value,
    number: int,
    points: Sequence[Axes],
    *others: int,
    data_varies: bool = True,
) -> Axes:
    """Returns the axes on which a value may depend, the numbered values being constant.

    Args:
      scope: the program.
      value: the value.
      number, others: the numbers of values that count as constants.
      points: by axis of the value the axes that it is computed from.
      data_varies: whether leaves depend on their positions; without, only iotas and constants do.
    """
    found: set[int] = set()
    waiting: list[tuple[ir.Value, tuple[Axes, ...]]] = [(scope.resolve(value), tuple(points))]
    seen: set[tuple[ir.Value, tuple[Axes, ...]]] = set()
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        each, at = item
        if scope.number(each) in (number, *others):
            continue
        made = scope.made_by(each)
        if made is None:
            found |= frozenset().union(*at) if data_varies else frozenset()
            continue
        op, kind = made
        if kind is How.CONSTANT:
            if not is_splat(op):
                found |= frozenset().union(*at)
        elif kind is How.IOTA:
            found |= at[ir.IntegerAttr(op.attributes["iota_dimension"]).value]
        elif kind is How.PART:
            found |= frozenset().union(*at)  # not followed: an upper bound
        else:
            waiting += [
                (scope.resolve(x), _operand_axes(op, kind, place, at))
                for place, x in enumerate(op.operands)
            ]
    return frozenset(found)


def _operand_axes(
    op: ir.Operation, kind: How, operand: int, at: tuple[Axes, ...]
) -> tuple[Axes, ...]:
    shape = shape_of(op.operands[operand])
    if not shape:
        return ()
    if kind is How.REDUCTION:
        outer, dimensions = iter(at), walk.integers(op, "dimensions")
        return tuple(
            frozenset() if axis in dimensions else next(outer) for axis in range(len(shape))
        )
    if kind is How.ELEMENTWISE:
        return at
    if kind is How.SCALED:
        places = ProductAxes.of(op).places(operand)
        return tuple(frozenset() if axis is None else at[axis] for axis in places)
    if op.name == "stablehlo.transpose":
        order = walk.integers(op, "permutation")
        return tuple(at[order.index(axis)] for axis in range(len(order)))
    target = shape_of(op.results[0])
    if op.name == "stablehlo.broadcast_in_dim":
        axes = walk.integers(op, "broadcast_dimensions")
        return tuple(
            frozenset() if size == 1 != target[axis] else at[axis]
            for size, axis in zip(shape, axes, strict=True)
        )
    return _reshaped(shape, target, at)


def _reshaped(
    source: Sequence[int], target: Sequence[int], at: tuple[Axes, ...]
) -> tuple[Axes, ...]:
    """Returns the axes of a reshape's operand: where extents agree those of the result, else of all
    that share the extent."""
    found: list[Axes] = [frozenset()] * len(source)
    wide = [axis for axis, size in enumerate(source) if size != 1]
    other = [axis for axis, size in enumerate(target) if size != 1]
    while wide and other:
        mine, theirs = [wide.pop(0)], [other.pop(0)]
        left, right = source[mine[0]], target[theirs[0]]
        while left != right:
            if left < right:
                mine.append(wide.pop(0))
                left *= source[mine[-1]]
            else:
                theirs.append(other.pop(0))
                right *= target[theirs[-1]]
        every = frozenset[int]().union(*(at[axis] for axis in theirs))
        for axis in mine:
            found[axis] = every
    return tuple(found)


@dataclass(frozen=True)
class Line:
    """An integer: a multiple of a first coordinate, one of a second, and a constant."""

    first: int
    second: int
    constant: int

    def plus(self, other: Line, sign: int) -> Line:
        """Returns the sum with another, or the difference."""
        return Line(
            self.first + sign * other.first,
            self.second + sign * other.second,
            self.constant + sign * other.constant,
        )


class CoordinateForm(enum.Enum):
    """A form of a value that is no `Line`."""

    OF_DIFFERENCE = "of the difference of both coordinates"
    UNKNOWN = "unknown"


_Formed = Line | CoordinateForm

_OF_DIFFERENCE, _UNKNOWN = CoordinateForm.OF_DIFFERENCE, CoordinateForm.UNKNOWN

_WIDE_BITS = 32

_LINEAR = {"stablehlo.add": 1, "stablehlo.subtract": -1}


def depends_on_difference(
    scope: Scope,
    value: ir.Value,
    number: int,
    points: Sequence[Line | None],
    *others: int,
    data_varies: bool = True,
) -> bool:
    """Whether a value is a function of the difference of two coordinates alone, the numbered values
    being constant.

    Args:
      scope: the program.
      value: the value.
      number, others: the numbers of values that count as constants.
      points: by axis of the value its coordinate; None where it is neither.
      data_varies: whether leaves depend on their positions; without, only iotas and constants do.
    """
    forms = _Forms(scope, (number, *others), data_varies=data_varies)
    found = forms.of(scope.resolve(value), tuple(points))
    return forms.is_of_difference(found)


class _Forms:
    def __init__(self, scope: Scope, numbers: tuple[int, ...], *, data_varies: bool) -> None:
        self._scope = scope
        self._of_leaves = _UNKNOWN if data_varies else _OF_DIFFERENCE
        self._numbers = numbers
        self._known: dict[tuple[ir.Value, tuple[Line | None, ...]], _Formed] = {}

    @staticmethod
    def is_of_difference(form: _Formed) -> bool:
        return form is _OF_DIFFERENCE or (isinstance(form, Line) and form.first == -form.second)

    def of(self, value: ir.Value, points: tuple[Line | None, ...]) -> _Formed:
        key = value, points
        if key not in self._known:
            self._known[key] = self._of(value, points)
        return self._known[key]

    def _of(self, value: ir.Value, points: tuple[Line | None, ...]) -> _Formed:
        scope = self._scope
        if scope.number(value) in self._numbers:
            return _OF_DIFFERENCE
        made = scope.made_by(value)
        if made is None:
            return self._of_leaves
        op, kind = made
        if kind is How.CONSTANT:
            return self._constant(op)
        if kind is How.IOTA:
            line = points[ir.IntegerAttr(op.attributes["iota_dimension"]).value]
            return _UNKNOWN if line is None or not _is_wide(value) else line
        if kind is How.SPREAD:
            source = _operand_lines(op, points)
            return _UNKNOWN if source is None else self.of(scope.resolve(op.operands[0]), source)
        if kind is not How.ELEMENTWISE:
            return _UNKNOWN
        read = [self.of(scope.resolve(x), points if shape_of(x) else ()) for x in op.operands]
        return self._combined(op, read)

    def _constant(self, op: ir.Operation) -> _Formed:
        if not is_splat(op):
            return _UNKNOWN
        number = self._scope.constant(op)
        is_integer = number.dtype.kind == "i"
        return Line(0, 0, int(number)) if is_integer else _OF_DIFFERENCE

    def _combined(self, op: ir.Operation, read: list[_Formed]) -> _Formed:
        if op.name == "stablehlo.convert" and isinstance(read[0], Line):
            return read[0] if _is_wide(op.results[0]) else _UNKNOWN
        if len(read) == 2:
            left, right = read
            if isinstance(left, Line) and isinstance(right, Line):
                if op.name in _LINEAR:
                    return left.plus(right, _LINEAR[op.name])
                if op.name == "stablehlo.compare":
                    return self._compared(left.plus(right, -1))
        return _OF_DIFFERENCE if all(map(self.is_of_difference, read)) else _UNKNOWN

    def _compared(self, apart: Line) -> _Formed:
        return _OF_DIFFERENCE if self.is_of_difference(apart) else _UNKNOWN


def _is_wide(value: ir.Value) -> bool:
    """Whether elements hold every coordinate."""
    element = element_of(value)
    if isinstance(element, ir.IntegerType):
        return bool(element.width >= _WIDE_BITS)
    return isinstance(element, ir.F32Type | ir.F64Type)


def _operand_lines(
    op: ir.Operation, points: tuple[Line | None, ...]
) -> tuple[Line | None, ...] | None:
    """Returns the coordinates in the operand of a movement; None where axes merge or split."""
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    if op.name == "stablehlo.transpose":
        order = walk.integers(op, "permutation")
        return tuple(points[order.index(axis)] for axis in range(len(order)))
    origin = Line(0, 0, 0)
    if op.name == "stablehlo.broadcast_in_dim":
        axes = walk.integers(op, "broadcast_dimensions")
        return tuple(
            origin if size == 1 else points[axis] for size, axis in zip(source, axes, strict=True)
        )
    wide = [axis for axis, size in enumerate(target) if size != 1]
    narrow = [axis for axis, size in enumerate(source) if size != 1]
    if [target[axis] for axis in wide] != [source[axis] for axis in narrow]:
        return None
    from_ = dict(zip(narrow, wide, strict=True))
    return tuple(points[from_[axis]] if axis in from_ else origin for axis in range(len(source)))
