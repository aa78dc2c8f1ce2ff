"""Questions about values that are computed from scores, and their answers for all layers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jax.extend.mlir import ir

from ..analysis.points.dependence import Line, axes_of, depends_on_difference
from ..analysis.points.derivation import Derivation, Groups, joined
from ..analysis.points.evaluator import Coordinates, Points, grid, unraveled
from ..analysis.points.leaves import Floats, Leaf, Numbers, booleans, integers, scaled, shifted
from ..analysis.points.operations import is_of_booleans, is_of_floats
from ..analysis.points.positions import Positions, source_of_elements
from ..analysis.value_numbers import operation_key
from ..framework.errors import NotPossibleError
from ..ir.values import shape_of
from .site import EmptyRows, Mask

_MOST_OPERATIONS = 300
"""The most values that weights are computed from; attention takes 30 to 100."""

_ROWS = 12
"""Rows of a sample. A table of positions with more numbers than these decides nothing by one."""

_ADDS = frozenset({"stablehlo.add", "stablehlo.select", "stablehlo.subtract"})

WHOLE_GRID = 2048
"""The most positions of a mask that is no function of their difference: all are looked at."""

Row = tuple[tuple[int, int], ...]
"""Some coordinates of a row of keys: axes of the scores, and where."""


@dataclass(frozen=True)
class Logits:
    """The logits whose softmax some weights are.

    Attributes:
      place: the number of the logits among the values that the weights are computed from.
      of_logarithm: the logits are the logarithm of that value.
      scale: the factor of the scores in them.
      query: the axis of the queries' positions.
      mask: the mask, where the kernel can make it.
      bias_axes: the axes that the rest of the logits depends on; empty without a rest.
      bias_numbers: samples of the rest where it masks nothing.
      empty_rows: the weights of rows without a key, by the forward program alone.
      is_uneven: where scores are hidden in such rows, keys may weigh differently.
      masked_rows: rows whose keys are all masked by constants and positions alone, by the axes that
        these depend on.
    """

    place: int
    of_logarithm: bool
    scale: float
    query: int | None
    mask: Mask
    bias_axes: tuple[int, ...]
    bias_numbers: tuple[float, ...]
    empty_rows: EmptyRows
    is_uneven: bool = False
    masked_rows: tuple[Row, ...] = ()


@dataclass
class Forms:
    """Known results for weights and for gradients, by the form of their code, shared by all scopes
    of a module: equal layers are examined once. A refusal is kept as its reason."""

    logits: dict[Hashable, Logits | str] = field(default_factory=dict)
    gradients: dict[Hashable, EmptyRows | str | None] = field(default_factory=dict)
    weights: dict[Hashable, bool] = field(default_factory=dict)


class Reader:
    """Questions about values that are computed from one product's result.

    Attributes:
      number: the number of the scores.
      sizes: the sizes of their axes.
    """

    def __init__(self, derivation: Derivation, number: int, origin: ir.Value) -> None:
        self.derivation = derivation
        self.scope = derivation.scope
        self.number = number
        self.sizes = derivation.sizes(number, origin)
        self.positions = Positions(derivation, number)
        self.rng = np.random.default_rng(7)
        self._rare: dict[int, tuple[Row, ...]] = {}

    def groups(self, value: ir.Value) -> Groups:
        """Returns the scores' axes of a value's. Raises NotPossibleError where it has others."""
        found = self.derivation.groups(value, self.number)
        if found is None:
            raise NotPossibleError("the weights are read in another way as well")
        return found

    def at(self, points: Points, value: ir.Value, where: Coordinates) -> Numbers:
        """Returns a value at coordinates of the scores."""
        return points.at(value, joined(self.groups(value), self.sizes, where))

    def logits_at(
        self,
        points: Points,
        value: ir.Value,
        where: Coordinates,
        shift: ir.Operation | None,
        *,
        of_logarithm: bool,
    ) -> Floats:
        """Returns logits at coordinates of the scores, without a subtraction in them."""
        found: Floats = self.at(points, value, where)
        less = self.subtracted(points, where, shift)
        with np.errstate(all="ignore"):
            found = np.log(found) if of_logarithm else found
            return np.where(np.isfinite(less), found + less, -np.inf)

    def subtracted(self, points: Points, where: Coordinates, shift: ir.Operation | None) -> Floats:
        """Returns what a subtraction takes away at coordinates of the scores; zeros without one."""
        if shift is None:
            return np.zeros(1)
        at = joined(self.groups(shift.results[0]), self.sizes, where)
        found: Floats = points.at(shift.operands[1], at)
        return found

    def points(
        self,
        seed: int,
        scores: Leaf,
        true: float = 0.7,
        floats: float = 1.0,
        leaves: Mapping[int, Leaf] | None = None,
        *,
        rounds: bool = False,
    ) -> Points:
        """Returns an assignment of the leaves, that of the scores and perhaps others given, which
        may have the scores, too."""
        given = {self.number: scores, **(leaves or {})}
        return Points(self.scope, seed, given, true, floats, rounds=rounds)

    def scores(self, seed: int, magnitude: float) -> Leaf:
        """Returns random scores."""
        return scaled(self.number * 1000 + seed, magnitude)

    def rows(self, key: int, count: int = _ROWS, given: Sequence[Row] = ()) -> Coordinates:
        """Returns whole rows of keys, the first, the last, and those that are given among them."""
        count = max(count, len(given) + 2)
        rows = {
            axis: self.rng.integers(0, size, count)
            for axis, size in enumerate(self.sizes)
            if axis != key
        }
        for axis, row in rows.items():
            row[0], row[-1] = 0, self.sizes[axis] - 1
        for place, coordinates in enumerate(given, 1):
            for axis, at in coordinates:
                if axis != key:
                    rows[axis][place] = at
        return grid(rows, key, self.sizes[key], len(self.sizes))

    def scattered(self, count: int, given: Sequence[Row] = ()) -> Coordinates:
        """Returns single points, those that are given among them."""
        points = tuple(self.rng.integers(0, size, count) for size in self.sizes)
        for place, coordinates in enumerate(given):
            for axis, at in coordinates:
                points[axis][place] = at
        return points

    def rare(self, value: ir.Value, groups: Groups) -> tuple[Row, ...]:
        """Returns points at which each table of positions that a value is computed from has each of
        its numbers, where these are few: samples might lack one that the table has at few places.

        ``groups`` are the scores' axes of the value's.
        """
        found: dict[Row, None] = {}
        for each, table in self.positions.read(value):
            number = self.scope.number(table)
            if number not in self._rare:
                self._rare[number] = tuple(self._numbers_of(table, each, value, groups))
            found |= dict.fromkeys(self._rare[number])
        return tuple(found)

    def _numbers_of(
        self, table: ir.Value, read_in: ir.Value, value: ir.Value, groups: Groups
    ) -> Iterator[Row]:
        mine = self.derivation.groups(read_in, self.number)
        if mine is None:
            theirs = self.derivation.groups(value, self.scope.number(read_in))
            if theirs is None or any(len(group) > 1 for group in theirs):
                return
            axes = {group[0]: own for group, own in zip(theirs, groups, strict=True) if group}
            mine = tuple(axes.get(axis, ()) for axis in range(len(shape_of(read_in))))
        if shape_of(table) != shape_of(read_in) or table == read_in:
            return
        points = [frozenset(group) for group in mine]
        depends = sorted(axes_of(self.scope, table, self.number, points))
        at = self._places_of(table, mine, depends)
        if at is None:
            return
        nothing = np.zeros_like(at[0]) if at else np.zeros(1, np.int64)
        by_axis = dict(zip(depends, at, strict=True))
        where = tuple(by_axis.get(axis, nothing) for axis in range(len(self.sizes)))
        numbers = Points(self.scope).at(table, joined(mine, self.sizes, where))
        distinct, first = np.unique(numbers, return_index=True)
        if len(distinct) <= _ROWS:
            for place in first:
                yield tuple((axis, int(x[place])) for axis, x in by_axis.items())

    def _places_of(
        self, table: ir.Value, groups: Groups, axes: Sequence[int]
    ) -> Coordinates | None:
        """Returns coordinates along some axes that stand for all; None where these are too many."""
        sizes = [self.sizes[axis] for axis in axes]
        if len(axes) == 2:
            forms = dict(zip(axes, (Line(1, 0, 0), Line(0, 1, 0)), strict=True))
            lines = [forms.get(group[0]) if len(group) == 1 else None for group in groups]
            if depends_on_difference(self.scope, table, self.number, lines):
                apart = np.arange(1 - sizes[1], sizes[0])
                return np.maximum(apart, 0), np.maximum(-apart, 0)
        count = math.prod(sizes)
        return unraveled(np.arange(count), sizes) if count <= WHOLE_GRID**2 else None

    def floats(self, value: ir.Value) -> list[int]:
        """Returns the leaves of floats that a value is computed from besides the scores."""
        leaves = {
            self.scope.number(each): None
            for each in self.derivation.region(value, self.number)
            if self.scope.made_by(each) is None and is_of_floats(each)
        }
        return [number for number in leaves if number != self.number]

    def decisions(self, value: ir.Value, seed: int, true: float) -> dict[int, Leaf]:
        """Returns leaves in place of the comparisons and other decisions about data that a value
        is computed from, of which a share are true: random integers would hardly ever be equal,
        or far apart."""
        scope, found = self.scope, {}
        for each in self.derivation.region(value, self.number):
            made = scope.made_by(each)
            if made is None or not is_of_booleans(each):
                continue
            is_decided = any(not is_of_booleans(operand) for operand in made[0].operands)
            if is_decided and self._is_of_data(each):
                number = scope.number(each)
                found[number] = booleans(number * 1000 + seed, true)
        return found

    def _is_of_data(self, value: ir.Value) -> bool:
        """Whether a value is computed from leaves, and not from the scores."""
        region = self.derivation.region(value, self.number)
        is_leaf = (self.scope.made_by(each) is None for each in region)
        return not self._reads_scores(value) and any(is_leaf)

    def _reads_scores(self, value: ir.Value) -> bool:
        region = self.derivation.region(value, self.number)
        return any(self.scope.number(each) == self.number for each in region)

    def terms(self, value: ir.Value, differ: float) -> Iterator[dict[int, Leaf]]:
        """Yields leaves of large negative numbers, which differ by a share, each in place of what
        is added to the scores and computed from numbers that are data: it may be a mask where these
        are none that a sample has. What is added as it is has samples of its own."""
        for each in self.derivation.region(value, self.number):
            made = self.scope.made_by(each)
            if made is None or made[0].name not in _ADDS or not is_of_floats(each):
                continue
            *_, left, right = made[0].operands
            if self._reads_scores(left) == self._reads_scores(right):
                continue
            term = right if self._reads_scores(left) else left
            is_subtracted = made[0].name == "stablehlo.subtract" and term == right
            is_leaf = self.scope.made_by(source_of_elements(self.scope, term)) is None
            if (is_subtracted or not is_leaf) and self._is_of_numbers(term):
                lowest = 1e9 if is_subtracted else -1e9
                number = self.scope.number(term)
                yield {number: shifted(scaled(number, lowest * differ), lowest)}

    def _is_of_numbers(self, value: ir.Value) -> bool:
        """Whether a value is computed from leaves of numbers other than by deciding something about
        them."""
        waiting, seen = [value], set()
        while waiting:
            each = self.scope.resolve(waiting.pop())
            if each in seen or is_of_booleans(each):
                continue
            seen.add(each)
            made = self.scope.made_by(each)
            if made is None:
                return True
            waiting += made[0].operands
        return False

    def integers(self, value: ir.Value, seed: int) -> dict[int, Leaf]:
        """Returns leaves of large integers in place of those that a value is computed from, as
        positions are."""
        return {
            number: integers(number * 1000 + seed, WHOLE_GRID)
            for each in self.derivation.region(value, self.number)
            if self.scope.made_by(each) is None
            and not is_of_floats(each)
            and not is_of_booleans(each)
            and (number := self.scope.number(each)) != self.number
        }

    def form(self, *values: ir.Value, marked: int | None = None) -> Hashable:
        """Returns a key of what values compute from the scores, whatever their leaves are called;
        the marked number differs from other leaves.

        Equal for the layers of a model. Raises NotPossibleError where that is too much to look at.
        """
        region = dict.fromkeys(
            each for value in values for each in self.derivation.region(value, self.number)
        )
        if len(region) > _MOST_OPERATIONS:
            raise NotPossibleError("its weights are computed from too many values to look at")
        place = {each: number for number, each in enumerate(region)}
        leaves: dict[int, int] = {}
        rows: list[Hashable] = [tuple(self.sizes)]
        rows += [place[self.scope.resolve(value)] for value in values]
        for each in region:
            made = self.scope.made_by(each)
            number = self.scope.number(each)
            if number == self.number:
                rows.append(("scores", str(each.type)))
            elif made is None:
                leaf = "marked" if number == marked else leaves.setdefault(number, len(leaves))
                rows.append((str(each.type), leaf))
            else:
                read = tuple(place[self.scope.resolve(operand)] for operand in made[0].operands)
                rows.append((made[0].name, operation_key(made[0]), read))
        return tuple(rows)
