"""Evaluates values of StableHLO at coordinates, on demand, in float64."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir

from ...ir import walk
from ...ir.products import ProductAxes
from ...ir.values import defining_op, element_of, shape_of
from ..value_numbers import ValueNumbers
from .leaves import Integers, Leaf, Numbers, normal, rounded, uniform
from .operations import (
    BINARY,
    COMPARISONS,
    UNARY,
    How,
    direction_of,
    how,
    is_of_booleans,
    is_of_floats,
    quotient,
    reduction_of,
    same_operand,
    wrapped,
)

Coordinates = tuple[Integers, ...]
"""By axis the coordinates of some points, all of one length; empty for a scalar."""

_MOST_POINTS = 20_000_000
"""The most elements that a reduction is asked for at once."""


_NUMBERS = re.compile(r"0x[0-9A-F]+|[-+.\deE]+")


class TooManyPointsError(Exception):
    """A reduction would be asked for more elements than are worth the time."""


class Scope:
    """The values of some blocks, read as one program.

    Attributes:
      numbers: the value numbers, equal for values that are equal.
      blocks: the blocks.
    """

    def __init__(
        self,
        numbers: ValueNumbers,
        blocks: Sequence[ir.Block],
        stands_for: Mapping[ir.Value, ir.Value],
    ) -> None:
        """``stands_for`` maps a value to another that it equals: an invariant argument of a loop to
        its operand, a read of a stack to what was stored."""
        self.numbers = numbers
        self.blocks = tuple(blocks)
        self.stands_for = stands_for
        self._constants: dict[ir.Value, Numbers] = {}
        self._resolved: dict[ir.Value, ir.Value] = {}
        self._made: dict[ir.Value, tuple[ir.Operation, How] | None] = {}

    def resolve(self, value: ir.Value) -> ir.Value:
        """Returns the first value that a value equals without any arithmetic."""
        found = self._resolved.get(value)
        if found is None:
            found = value
            while (
                same := self.stands_for[found] if found in self.stands_for else same_operand(found)
            ) is not None:
                found = same
            self._resolved[value] = found
        return found

    def made_by(self, value: ir.Value) -> tuple[ir.Operation, How] | None:
        """Returns the operation that a value is asked of, and how; None for a leaf."""
        value = self.resolve(value)
        if value not in self._made:
            op = defining_op(value)
            kind = None if op is None else how(op)
            self._made[value] = None if op is None or kind is None else (op, kind)
        return self._made[value]

    def number(self, value: ir.Value) -> int:
        """Returns the value's number."""
        return self.numbers.of(self.resolve(value))

    def constant(self, op: ir.Operation) -> Numbers:
        """Returns the elements of a constant; a splat's is a scalar."""
        result = op.results[0]
        if result not in self._constants:
            self._constants[result] = _elements(op)
        return self._constants[result]


def _elements(op: ir.Operation) -> Numbers:
    result, attribute = op.results[0], ir.DenseElementsAttr(op.attributes["value"])
    found: Any
    if attribute.is_splat:
        splat = attribute.get_splat_value()
        is_float = isinstance(splat, ir.FloatAttr)
        found = ir.FloatAttr(splat).value if is_float else ir.IntegerAttr(splat).value
    else:
        found = _spelled(attribute).reshape(shape_of(result))
    if is_of_booleans(result):
        return np.asarray(found).astype(bool)
    return np.asarray(found).astype(np.float64 if is_of_floats(result) else np.int64)


def _spelled(attribute: ir.DenseElementsAttr) -> Numbers:
    """Returns a constant's elements; those of bfloat16, of which NumPy has none, by its text."""
    found: Numbers = np.asarray(attribute)
    if found.dtype != np.dtype(object):
        return found
    body = str(attribute).removeprefix("dense<").partition("> : ")[0]
    if body.startswith('"'):
        words = np.frombuffer(bytes.fromhex(body[3:-1]), "<u2")
    else:
        texts = _NUMBERS.findall(body)
        words = np.array([int(text, 16) if "x" in text else 0 for text in texts], np.uint16)
        plain = [number for number, text in enumerate(texts) if "x" not in text]
        numbers = np.array([float(texts[number]) for number in plain], np.float32)
        words[plain] = numbers.view(np.uint32) >> np.uint32(16)
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


class Points:
    """One assignment of numbers to the leaves, and the values that follow from it."""

    def __init__(
        self,
        scope: Scope,
        seed: int = 0,
        leaves: Mapping[int, Leaf] | None = None,
        true: float = 0.7,
        floats: float = 1.0,
        *,
        rounds: bool = False,
    ) -> None:
        """``leaves`` overrides values by their number, ``true`` is the share of booleans that are
        true and of integers that are 1, ``floats`` the magnitude of floats; a negative one is the
        number that all of them are. Integers are 0 or 1: as masks they have no other meaning. With
        ``rounds`` elementwise results are rounded to their types, as the program does."""
        self._scope = scope
        self._seed = seed
        self._override = leaves or {}
        self._true = true
        self._floats = floats
        self._rounds = rounds
        self._known: dict[tuple[ir.Value, tuple[int, ...]], Numbers] = {}
        self._kept: list[Coordinates] = []
        """Coordinates that are asked for: the keys of what is known are their addresses."""
        self._rows: dict[tuple[ir.Value, bytes], Numbers] = {}
        self._whole: dict[tuple[object, ...], Coordinates] = {}
        """Coordinates of whole rows, by the reduction's axes and the rows."""

    def at(self, value: ir.Value, points: Coordinates) -> Numbers:
        """Returns the elements of a value at some points.

        A scalar has one element. Raises TooManyPointsError.
        """
        value = self._scope.resolve(value)
        key = value, tuple(map(id, points))
        found = self._known.get(key)
        if found is None:
            self._kept.append(points)
            with np.errstate(all="ignore"):
                found = self._known[key] = self._computed(value, points)
        return found

    def _computed(self, value: ir.Value, points: Coordinates) -> Numbers:
        made = self._scope.made_by(value)
        number = self._scope.number(value)
        if made is None or number in self._override:
            return self._leaf(value, number, points)
        op, kind = made
        if kind is How.CONSTANT:
            elements = self._scope.constant(op)
            return (
                np.broadcast_to(elements, _count(points)) if not elements.ndim else elements[points]
            )
        if kind is How.IOTA:
            axis = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            return points[axis].astype(np.float64 if is_of_floats(value) else np.int64)
        if kind is How.SPREAD:
            return _spread(self.at(op.operands[0], moved(op, points)), points)
        if kind is How.PART:
            return self._part(op, value, points)
        if kind is How.REDUCTION:
            return self._reduced(op, value, points)
        if kind is How.SCALED:
            found = self._scaled(op, points)
        else:
            found = wrapped(self._elementwise(op, value, points), value)
        if self._rounds and is_of_floats(value):
            return rounded(found, str(element_of(value)))
        return found

    def _leaf(self, value: ir.Value, number: int, points: Coordinates) -> Numbers:
        places = linear(points, shape_of(value))
        if number in self._override:
            return self._override[number](places)
        salt = number * 1000 + self._seed
        if is_of_booleans(value):
            return uniform(places, salt) < self._true
        if not is_of_floats(value):
            return (uniform(places, salt) < self._true).astype(np.int64)
        if self._floats < 0:
            return np.full(len(places), self._floats)
        return rounded(normal(places, salt) * self._floats, str(element_of(value)))

    def _elementwise(self, op: ir.Operation, value: ir.Value, points: Coordinates) -> Numbers:
        name = op.name
        read = [
            self.at(operand, points) if shape_of(operand) else _spread(self.at(operand, ()), points)
            for operand in op.operands
        ]
        if name in UNARY:
            return UNARY[name](read[0])
        if name == "stablehlo.divide" and not is_of_floats(value):
            return quotient(*read)
        if name in BINARY:
            return BINARY[name](*read)
        if name == "stablehlo.compare":
            return COMPARISONS[direction_of(op)](*read)
        if name == "stablehlo.select":
            return np.where(*read)
        if name == "stablehlo.clamp":
            return np.minimum(np.maximum(read[1], read[0]), read[2])
        return _converted(read[0], op.operands[0], value)

    def _scaled(self, op: ir.Operation, points: Coordinates) -> Numbers:
        left, right = (
            _spread(self.at(operand, moved(op, points, number)), points)
            for number, operand in enumerate(op.operands)
        )
        found: Numbers = left * right
        return found

    def _part(self, op: ir.Operation, value: ir.Value, points: Coordinates) -> Numbers:
        source = op.operands[0]
        if op.name in ("stablehlo.slice", "stablehlo.reverse"):
            return self.at(source, moved(op, points))
        if op.name == "stablehlo.pad":
            low = walk.integers(op, "edge_padding_low")
            steps = [inner + 1 for inner in walk.integers(op, "interior_padding")]
            shifted = [each - edge for each, edge in zip(points, low, strict=True)]
            inside = np.ones(_count(points), bool)
            for each, step, size in zip(shifted, steps, shape_of(source), strict=True):
                inside &= (each >= 0) & (each % step == 0) & (each // step < size)
            found = np.array(_spread(self.at(op.operands[1], ()), points))
            if inside.any():
                at = tuple((x // step)[inside] for x, step in zip(shifted, steps, strict=True))
                found[inside] = self.at(source, at)
            return found
        axis, start = ir.IntegerAttr(op.attributes["dimension"]).value, 0
        parts = np.zeros(_count(points), bool if is_of_booleans(value) else np.float64)
        for operand in op.operands:
            end = start + shape_of(operand)[axis]
            here = (points[axis] >= start) & (points[axis] < end)
            if here.any():
                at = tuple((x - start * (n == axis))[here] for n, x in enumerate(points))
                parts[here] = self.at(operand, at)
            start = end
        is_integer = not is_of_booleans(value) and not is_of_floats(value)
        return parts.astype(np.int64) if is_integer else parts

    def _reduced(self, op: ir.Operation, value: ir.Value, points: Coordinates) -> Numbers:
        """Returns a reduction's elements; each row that it combines is asked for once."""
        shape = shape_of(value)
        places = linear(points, shape)
        starts = np.flatnonzero(np.diff(places, prepend=-1))  # mostly of a row's length
        rows, where = np.unique(places[starts], return_inverse=True)
        where = np.repeat(where.reshape(-1), np.diff(starts, append=len(places)))
        key = value, rows.tobytes()
        if key not in self._rows:
            dimensions, source = walk.integers(op, "dimensions"), shape_of(op.operands[0])
            extents = [source[axis] for axis in dimensions]
            length = math.prod(extents)
            if len(rows) * length > _MOST_POINTS:
                raise TooManyPointsError
            place = tuple(source), tuple(dimensions), key[1]
            if place not in self._whole:
                outer = iter([np.repeat(each, length) for each in unraveled(rows, shape)])
                inner = iter([np.tile(x, len(rows)) for x in unraveled(np.arange(length), extents)])
                self._whole[place] = tuple(
                    next(inner if axis in dimensions else outer) for axis in range(len(source))
                )
            combine = reduction_of(op)
            assert combine is not None
            elements = self.at(op.operands[0], self._whole[place]).reshape(len(rows), length)
            initial = self.at(op.operands[1], ())[0]
            self._rows[key] = combine.reduce(elements, axis=1, initial=initial)
        return self._rows[key][where]


def _converted(numbers: Numbers, source: ir.Value, value: ir.Value) -> Numbers:
    """Returns converted numbers. Rounding to a narrower float is no change of meaning."""
    if is_of_booleans(value):
        return numbers != 0
    if is_of_floats(value):
        return numbers.astype(np.float64)
    return np.trunc(numbers).astype(np.int64) if is_of_floats(source) else numbers.astype(np.int64)


def _count(points: Coordinates) -> int:
    return len(points[0]) if points else 1


def _spread(numbers: Numbers, points: Coordinates) -> Numbers:
    """Returns one number for all points, where there is only one."""
    count = _count(points)
    return np.broadcast_to(numbers, (count,)) if len(numbers) == 1 != count else numbers


def linear(points: Coordinates, shape: Sequence[int]) -> Integers:
    """Returns the positions of points in row-major order."""
    found = points[0] if points else np.zeros(1, np.int64)
    for each, size in zip(points[1:], shape[1:], strict=True):
        found = found * size + each
    return found


def unraveled(positions: Integers, shape: Sequence[int]) -> Coordinates:
    """Returns the coordinates of positions in row-major order."""
    if not shape:
        return ()
    return tuple(np.asarray(each, np.int64) for each in np.unravel_index(positions, shape))


def moved(op: ir.Operation, points: Coordinates, operand: int = 0) -> Coordinates:
    """Returns the coordinates in the operand of a movement, of which each point is one element; or
    in an operand of a product that sums nothing."""
    if op.name == "stablehlo.dot_general":
        none = np.zeros(_count(points), np.int64)
        places = ProductAxes.of(op).places(operand)
        return tuple(none if axis is None else points[axis] for axis in places)
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    if op.name == "stablehlo.transpose":
        order = walk.integers(op, "permutation")
        return tuple(points[order.index(axis)] for axis in range(len(order)))
    if op.name == "stablehlo.broadcast_in_dim":
        axes = walk.integers(op, "broadcast_dimensions")
        return tuple(
            np.zeros_like(points[axis]) if size == 1 != target[axis] else points[axis]
            for size, axis in zip(source, axes, strict=True)
        )
    if op.name == "stablehlo.slice":
        starts, steps = walk.integers(op, "start_indices"), walk.integers(op, "strides")
        return tuple(x * step + at for x, at, step in zip(points, starts, steps, strict=True))
    if op.name == "stablehlo.reverse":
        reversed_ = walk.integers(op, "dimensions")
        return tuple(
            target[axis] - 1 - each if axis in reversed_ else each
            for axis, each in enumerate(points)
        )
    wide = [axis for axis, size in enumerate(target) if size != 1]
    narrow = [axis for axis, size in enumerate(source) if size != 1]
    if [target[axis] for axis in wide] == [source[axis] for axis in narrow]:
        # Only axes of one element come or go.
        from_ = dict(zip(narrow, wide, strict=True))
        nothing = np.zeros(_count(points), np.int64)
        return tuple(
            points[from_[axis]] if axis in from_ else nothing for axis in range(len(source))
        )
    return unraveled(linear(points, target), source)


def grid(rows: Mapping[int, Integers], axis: int, length: int, rank: int) -> Coordinates:
    """Returns the points of whole rows along an axis, which begin at coordinates by other axis."""
    count = len(next(iter(rows.values()))) if rows else 1
    whole = np.tile(np.arange(length), count)
    return tuple(
        whole if each == axis else np.repeat(rows.get(each, np.zeros(count, np.int64)), length)
        for each in range(rank)
    )


def are_close(found: Numbers, wanted: Numbers, tolerance: float = 1e-6) -> bool:
    """Whether numbers are equal but for rounding; those that are not finite, exactly."""
    with np.errstate(all="ignore"):
        near = np.abs(found - wanted) <= tolerance * (1e-3 + np.abs(found) + np.abs(wanted))
    both = near | (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return bool(np.all(both))
