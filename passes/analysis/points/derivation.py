"""Finds values computed from others element by element, and which of their axes are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend.mlir import ir

from ...ir.values import defining_op, shape_of
from ..reach import settled
from .evaluator import Coordinates, Scope, linear, moved, unraveled
from .leaves import Integers
from .operations import EXPONENTIALS, How, is_of_sums

Groups = tuple[tuple[int, ...], ...]
"""By axis of a value, which axes of another it has, the major one first."""

_ITSELF = -1


class Derivation:
    """The values of a scope computed from others of their size, element by element.

    A product's result may be split along its axes where a value computed from it is: `split_by`
    notes this, and axes are numbered after it.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._steps: dict[tuple[ir.Value, int], int | None] = {}
        self._products: dict[ir.Value, frozenset[ir.Value]] = {}
        self._exponential: dict[ir.Value, bool] = {}
        self._parts: dict[int, list[list[int]]] = {}
        self._groups: dict[tuple[ir.Value, int], Groups | None] = {}

    def operands(self, value: ir.Value) -> list[tuple[int, ir.Value]]:
        """Returns the operands of a value's size of which its elements are made one by one, with
        their numbers."""
        made = self.scope.made_by(value)
        if made is None or made[1] not in (How.ELEMENTWISE, How.SPREAD, How.SCALED):
            return []
        size = math.prod(shape_of(value))
        return [
            (number, self.scope.resolve(operand))
            for number, operand in enumerate(made[0].operands)
            if math.prod(shape_of(operand)) == size
        ]

    def products(self, value: ir.Value) -> frozenset[ir.Value]:
        """Returns the results of products of a value's size of which its elements are made."""
        return settled(self._products, self.scope.resolve(value), self._sources, self._products_of)

    def _sources(self, value: ir.Value) -> Iterator[ir.Value]:
        return (operand for _, operand in self.operands(value))

    def _products_of(self, value: ir.Value) -> frozenset[ir.Value]:
        if is_of_sums(defining_op(value)):
            return frozenset([value])
        return frozenset().union(*(self._products[each] for each in self._sources(value)))

    def has_exponential(self, value: ir.Value) -> bool:
        """Whether an exponential is among what a value's elements are computed from."""

        def found(each: ir.Value) -> bool:
            op = defining_op(each)
            is_one = op is not None and op.name in EXPONENTIALS
            return is_one or any(self._exponential[source] for source in self._sources(each))

        return settled(self._exponential, self.scope.resolve(value), self._sources, found)

    def step(self, value: ir.Value, number: int) -> int | None:
        """Returns the operand through which a value is computed from the numbered one; -1 for that
        one itself, None where it is not."""

        def needs(key: tuple[ir.Value, int]) -> Iterator[tuple[ir.Value, int]]:
            if self.scope.number(key[0]) != number:
                yield from ((source, number) for source in self._sources(key[0]))

        def found(key: tuple[ir.Value, int]) -> int | None:
            if self.scope.number(key[0]) == number:
                return _ITSELF
            steps = self.operands(key[0])
            return next((n for n, each in steps if self._steps[each, number] is not None), None)

        return settled(self._steps, (self.scope.resolve(value), number), needs, found)

    def origin(self, value: ir.Value, number: int) -> ir.Value:
        """Returns the numbered value that a value is computed from."""
        value = self.scope.resolve(value)
        while (step := self.step(value, number)) != _ITSELF:
            made = self.scope.made_by(value)
            assert made is not None
            assert step is not None
            value = self.scope.resolve(made[0].operands[step])
        return value

    def follow(self, value: ir.Value, number: int, points: Coordinates) -> Coordinates:
        """Returns the coordinates of the numbered value that a value's elements come from."""
        value = self.scope.resolve(value)
        while (step := self.step(value, number)) != _ITSELF:
            made = self.scope.made_by(value)
            assert made is not None
            assert step is not None
            op, kind = made
            if kind in (How.SPREAD, How.SCALED):
                points = moved(op, points, step)
            value = self.scope.resolve(op.operands[step])
        return points

    def region(self, value: ir.Value, *numbers: int) -> list[ir.Value]:
        """Returns the values that a value is computed from, up to leaves and numbered values, each
        once, the value itself first."""
        found: dict[ir.Value, None] = {}
        waiting = [self.scope.resolve(value)]
        while waiting:
            each = waiting.pop()
            if each in found:
                continue
            found[each] = None
            made = self.scope.made_by(each)
            if made is not None and self.scope.number(each) not in numbers:
                waiting += [self.scope.resolve(operand) for operand in made[0].operands][::-1]
        return list(found)

    def sizes(self, number: int, value: ir.Value) -> list[int]:
        """Returns the sizes of the numbered value's axes, those that are split as several."""
        return [size for part in self._parts_of(number, value) for size in part]

    def axes(self, number: int, value: ir.Value) -> Groups:
        """Returns by axis of the numbered value the axes that it is split into."""
        found, start = [], 0
        for part in self._parts_of(number, value):
            found.append(tuple(range(start, start + len(part))))
            start += len(part)
        return tuple(found)

    def _parts_of(self, number: int, value: ir.Value) -> list[list[int]]:
        return self._parts.get(number) or [[size] for size in shape_of(value)]

    def split_by(self, value: ir.Value, number: int) -> None:
        """Notes how the numbered value's axes are split by what a value is computed from."""
        if number in self._parts:
            return
        origin = self.origin(value, number)
        shape = shape_of(origin)
        wide = sum(size > 1 for size in shape)
        for each in self.region(value, number):
            mine = shape_of(each)
            if sum(size > 1 for size in mine) <= wide or math.prod(mine) != math.prod(shape):
                continue
            if self.step(each, number) is None:
                continue
            parts = self._parts_along(each, number, shape)
            if parts is not None:
                self._parts[number] = parts
                return

    def _parts_along(
        self, value: ir.Value, number: int, shape: Sequence[int]
    ) -> list[list[int]] | None:
        by_axis: list[list[tuple[int, int]]] = [[] for _ in shape]
        for axis, size in enumerate(shape_of(value)):
            if size == 1:
                continue
            at = self.follow(value, number, _along(shape_of(value), axis))
            changed = [each for each, x in enumerate(at) if len(np.unique(x)) > 1]
            if len(changed) != 1:
                return None
            stride = int(at[changed[0]][1] - at[changed[0]][0])
            by_axis[changed[0]].append((stride, size))
        parts = [[size for _, size in sorted(part, reverse=True)] or [1] for part in by_axis]
        return parts if [math.prod(part) for part in parts] == list(shape) else None

    def groups(self, value: ir.Value, number: int) -> Groups | None:
        """Returns which axes of the numbered value each axis of a value is; None where the value is
        not its elements in another order."""
        value = self.scope.resolve(value)
        key = value, number
        if key not in self._groups:
            self._groups[key] = self._groups_of(value, number)
        return self._groups[key]

    def _groups_of(self, value: ir.Value, number: int) -> Groups | None:
        if self.step(value, number) is None:
            return None
        shape = shape_of(value)
        origin = self.origin(value, number)
        parts = self._parts_of(number, origin)
        inner = [size for part in parts for size in part]
        found: list[tuple[int, ...]] = []
        used: set[int] = set()
        for axis, size in enumerate(shape):
            if size == 1:
                found.append(())
                continue
            at = _split(self.follow(value, number, _along(shape, axis)), parts)
            mine = tuple(
                each for each, x in enumerate(at) if inner[each] > 1 and len(np.unique(x)) > 1
            )
            sizes = [inner[each] for each in mine]
            if math.prod(sizes) != size or used & {*mine}:
                return None
            if not np.array_equal(linear(tuple(at[n] for n in mine), sizes), np.arange(size)):
                return None
            used |= {*mine}
            found.append(mine)
        return tuple(found) if used == {n for n, size in enumerate(inner) if size > 1} else None


def _along(shape: Sequence[int], axis: int) -> Coordinates:
    """Returns the points along one axis, in the middle of the others."""
    size = shape[axis]
    return tuple(
        np.arange(size) if each == axis else np.full(size, extent // 2)
        for each, extent in enumerate(shape)
    )


def _split(points: Coordinates, parts: Sequence[Sequence[int]]) -> Coordinates:
    found: list[Integers] = []
    for each, part in zip(points, parts, strict=True):
        found += [each] if len(part) == 1 else unraveled(each, part)
    return tuple(found)


def joined(groups: Groups, sizes: Sequence[int], points: Coordinates) -> Coordinates:
    """Returns coordinates of a value, whose axes are groups of others; one axis keeps its array."""
    return tuple(
        points[group[0]]
        if len(group) == 1
        else linear(tuple(points[axis] for axis in group), [sizes[axis] for axis in group])
        if group
        else np.zeros_like(points[0])
        for group in groups
    )
