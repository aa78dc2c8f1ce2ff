"""Reads a matrix of weights: finds the scores that it is the softmax of, and their scale, mask and
bias.

Everything is asked of the program at points (`analysis/points`), so that spellings do not matter.
What an answer from samples would not prove is proved by the form of the code: which axes a bias
depends on, and that a mask is causal at every position.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from jax.extend.mlir import ir

from ..analysis.points.dependence import Line, axes_of, depends_on_difference
from ..analysis.points.derivation import Groups
from ..analysis.points.evaluator import Coordinates, Points, are_close, linear, unraveled
from ..analysis.points.leaves import (
    Floats,
    Integers,
    Leaf,
    Numbers,
    masking,
    rounded,
    shifted,
    zero,
)
from ..analysis.points.operations import How, is_of_floats, reduction_of
from ..analysis.points.positions import Positions
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.values import shape_of
from .reader import WHOLE_GRID, Logits, Reader, Row
from .site import EmptyRows, Mask

MASKED = -5e3
"""Logits below this are masked: their exponential is 0 in every type."""

_ROUNDING = 0.05
"""How far weights sum to another number than 1 where 16 bits round them."""

_SCATTERED = 20_000
_BIAS_SAMPLES = 4_000

_MASKED_ROWS = 2

_ASSIGNMENTS = (
    (1, 1.0, 0.7, 1.0),
    (2, 3.0, 0.2, 1.0),
    (3, 1.0, 0.0, 1.0),
    (4, 40.0, 1.0, 1.0),
    (5, 3e2, 1.0, 1.0),
    (6, 1e5, 1.0, 1.0),
    (7, 1e30, 0.7, 1.0),
    (8, 1.0, 0.7, -1e9),
    (9, 1.0, 1.0, 1.0),
    (10, 1.0, 0.02, 1.0),
)
"""Seeds, magnitudes of the scores, shares of true booleans, and magnitudes of other floats: a clip
at 1e4 shows only above, and a mask may be an argument of large negative numbers."""

_MAGNITUDES = (1.0, 40.0, 1e5, 1e30)

NEAR, FAR = _MAGNITUDES[0], _MAGNITUDES[-1]
"""Scores that show in a row unless rounding hides what is added to it, and scores
that change each number that they are added to, so that a mask shows."""

_UNDERFLOW = -math.log(sys.float_info.min)
"""In float64 the exponential of a number nearer to zero is neither 0 nor infinite."""

NO_SOFTMAX = "its weights are no softmax of the scores along the keys"
NOT_SCALED = "the scores are not only scaled, shifted and masked before the softmax"
EMPTY_ROWS = "rows without a key are no average of the values"


class SoftmaxReader:
    """Reads the weights of one matrix of scores."""

    def __init__(self, reader: Reader, weights: ir.Value, key: int, queries: tuple[int, ...]):
        self.reader, self.weights, self.key, self.queries = reader, weights, key, queries
        self.length = reader.sizes[key]
        self._shifts: dict[ir.Value, ir.Operation | None] = {}

    def is_normalized(self) -> bool:
        """Whether the weights are positive and sum to 1 along the keys, in rows that are numbers:
        behind minus infinity a row without a key is none."""
        weights = self._weights(self.reader.points(1, self.reader.scores(1, 1.0)), self._few)
        rows = weights[np.isfinite(weights).all(1)]
        return bool(len(rows) and np.all(rows >= 0) and np.allclose(rows.sum(1), 1, atol=1e-6))

    def may_be_meant(self) -> bool:
        """Whether the weights are neither negative nor large, whatever the scores are: so that a
        user may take them for attention's."""
        weights = self._weights(self.reader.points(1, self.reader.scores(1, 1e5)), self._few)
        return bool(np.all(~np.isfinite(weights) | ((weights >= 0) & (weights <= 2))))

    @property
    def _rare(self) -> tuple[Row, ...]:
        return self.reader.rare(self.weights, self.reader.groups(self.weights))

    @property
    def _few(self) -> Coordinates:
        return self.reader.rows(self.key, 4)

    def _weights(self, points: Points, rows: Coordinates) -> Numbers:
        return self.reader.at(points, self.weights, rows).reshape(-1, self.length)

    def is_reduced_along_keys(self) -> bool:
        """Whether some value of the weights' size is combined along the keys."""
        reader, size = self.reader, math.prod(self.reader.sizes)
        for value in reader.derivation.region(self.weights, reader.number):
            made = reader.scope.made_by(value)
            if made is None or made[1] is not How.REDUCTION:
                continue
            source = made[0].operands[0]
            if math.prod(shape_of(source)) != size:
                continue
            groups = reader.derivation.groups(source, reader.number)
            dimensions = walk.integers(made[0], "dimensions")
            if groups and self.key in {axis for d in dimensions for axis in groups[d]}:
                return True
        return False

    def candidates(self) -> list[ir.Value]:
        """Returns the values that may be the logits: computed from the scores one by one, of their
        size, and without a sum over others; then those behind the exponential of scores less their
        maximum, whose logarithm may be the logits."""
        reader = self.reader
        found = [
            value
            for value in reader.derivation.region(self.weights, reader.number)
            if is_of_floats(value) and reader.derivation.groups(value, reader.number) is not None
        ]
        plain = [value for value in found if not self._reductions(value)]
        return plain + [
            value
            for value in found
            if reader.derivation.has_exponential(value) and self.shift(value) is not None
        ]

    def _reductions(self, value: ir.Value, *ends: int) -> list[ir.Operation]:
        """Returns the reductions of scores that a value is computed from, up to ends."""
        scope, region, number = self.reader.scope, self.reader.derivation.region, self.reader.number
        found = []
        for each in region(value, number, *ends):
            made = scope.made_by(each)
            is_end = scope.number(each) in (number, *ends)
            if made is None or made[1] is not How.REDUCTION or is_end:
                continue
            if any(scope.number(one) == number for one in region(made[0].operands[0], number)):
                found.append(made[0])
        return found

    def shift(self, value: ir.Value) -> ir.Operation | None:
        """Returns the subtraction of a maximum of a row's scores that a value is computed from, the
        only reduction of scores in it; None where there is none.

        What is subtracted is one number for all keys of a row, by the form of the code: the softmax
        is the same without it, whatever it is.
        """
        if value not in self._shifts:
            reader, found = self.reader, dict[int, ir.Operation]()
            is_reduced = bool(self._reductions(value))
            for each in reader.derivation.region(value, reader.number) if is_reduced else ():
                made = reader.scope.made_by(each)
                if made is not None and made[0].name == "stablehlo.subtract":
                    groups = reader.derivation.groups(each, reader.number)
                    if groups is not None and self._is_maximum(made[0].operands[1], groups):
                        found[reader.scope.number(made[0].operands[1])] = made[0]
            is_alone = len(found) == 1 and not self._reductions(value, *found)
            self._shifts[value] = next(iter(found.values())) if is_alone else None
        return self._shifts[value]

    def _is_maximum(self, value: ir.Value, groups: Groups) -> bool:
        """Whether a value is computed from maxima of scores, one for each row of keys."""
        rows = {axis for axis, size in enumerate(self.reader.sizes) if size > 1} - {self.key}
        reductions = self._reductions(value)
        if not reductions or any(reduction_of(op) is not np.maximum for op in reductions):
            return False
        points = [frozenset(group) for group in groups]
        return axes_of(self.reader.scope, value, -1, points) == rows  # scores vary, too

    def _shifted(self, value: ir.Value) -> dict[int, Leaf]:
        """Returns zeros by the number of what is subtracted in a value, behind which nothing counts
        where scores are zero."""
        shift = self.shift(value)
        return {} if shift is None else {self.reader.scope.number(shift.operands[1]): zero}

    def logits(self) -> Logits:
        """Returns what the weights are the softmax of. Raises NotPossibleError, TooManyPointsError.

        The logarithm of a value is tried last: a mask may be behind the exponential.
        """
        candidates = self.candidates()
        rows = self.reader.rows(self.key)
        reason = NO_SOFTMAX
        for of_logarithm in (False, True):
            for place, value in enumerate(candidates):
                if value == self.reader.scope.resolve(self.weights) and of_logarithm:
                    continue
                try:
                    return self._read(place, value, of_logarithm, rows)
                except NotPossibleError as error:
                    if reason == NO_SOFTMAX or error.reason == EMPTY_ROWS:
                        reason = error.reason
        raise NotPossibleError(reason)

    def _read(self, place: int, value: ir.Value, of_logarithm: bool, rows: Coordinates) -> Logits:
        empty, is_uneven = self._check_softmax(value, of_logarithm, rows)
        scope, positions = self.reader.scope, self.reader.positions
        tables = positions.tables(self.weights)
        if ends := self._shifted(value):  # what is subtracted may have tables of its own
            of = partial(Positions, self.reader.derivation, self.reader.number)
            tables, positions = of(scope.number(value)).tables(self.weights), of(*ends)
        if not tables <= positions.tables(value):
            raise NotPossibleError("its weights are changed at some positions behind the softmax")
        rare = self._rare
        if rare:
            rows = self.reader.rows(self.key, given=rare)
            empty, is_uneven = self._check_softmax(value, of_logarithm, rows)
        if positions.multiplies_unevenly(value):
            raise NotPossibleError("its scores are scaled by numbers that differ by position")
        scale = self._scale(value, of_logarithm)
        depends = self._depends(value)
        query = max(
            self.queries,
            key=lambda axis: (axis in depends, self.reader.sizes[axis], axis),
            default=None,
        )
        if not depends:
            return Logits(place, of_logarithm, scale, query, Mask(), (), (), EmptyRows.NONE)
        mask = self._mask(value, of_logarithm, query, depends)
        if mask is not None:
            return Logits(place, of_logarithm, scale, query, mask, (), (), EmptyRows.NONE)
        masked = self._masked_rows(value, of_logarithm, query)
        if masked:
            rows = self.reader.rows(self.key, given=(*masked, *rare))
            empty, is_uneven = self._check_softmax(value, of_logarithm, rows)
        numbers = self._bias_numbers(value, of_logarithm)
        axes = tuple(sorted(depends))
        return Logits(
            place, of_logarithm, scale, query, Mask(), axes, numbers, empty, is_uneven, masked
        )

    def logits_at(
        self, points: Points, value: ir.Value, of_logarithm: bool, where: Coordinates
    ) -> Floats:
        """Returns logits at coordinates of the scores."""
        shift = self.shift(value)
        return self.reader.logits_at(points, value, where, shift, of_logarithm=of_logarithm)

    def _check_softmax(
        self, value: ir.Value, of_logarithm: bool, rows: Coordinates
    ) -> tuple[EmptyRows, bool]:
        """Raises NotPossibleError where the weights are no softmax of a value; returns what rows
        without a key weigh, and whether keys differ there.

        Rows in which the program itself overflows are left out.
        """
        kinds: set[EmptyRows] = set()
        is_uneven = False
        for seed, magnitude, true, floats, masks in self._assignments(value):
            leaf = self.reader.scores(seed, magnitude)
            points = self.reader.points(seed, leaf, true, floats, masks)
            weights = self._weights(points, rows)
            logits = self.logits_at(points, value, of_logarithm, rows).reshape(weights.shape)
            finite = np.isfinite(weights).all(1)
            if not are_close(weights[finite], softmax(logits)[finite]):
                raise NotPossibleError(NO_SOFTMAX if true else EMPTY_ROWS)
            if not finite.any() and magnitude < 2 and true > 0.5 and floats > 0:
                raise NotPossibleError(NO_SOFTMAX)
            empty = finite & ~(logits > MASKED).any(1)
            if magnitude == 1.0 and empty.any():
                precise = self.reader.points(seed, leaf, true, floats, masks, rounds=True)
                hidden = self.reader.points(
                    seed, zero, true, floats, {**masks, **self._shifted(value)}, rounds=True
                )
                alone = self.logits_at(hidden, value, of_logarithm, rows).reshape(weights.shape)
                alone = softmax(np.where(np.isinf(alone).all(1, keepdims=True), 0.0, alone))[empty]
                kinds.add(
                    self._kind_of_empty(self._weights(precise, rows)[empty], logits[empty], alone)
                )
                is_uneven |= not are_close(alone, np.full_like(alone, 1 / self.length))
        if len(kinds) > 1:
            raise NotPossibleError("rows without a key have weights of two kinds")
        return next(iter(kinds), EmptyRows.AVERAGE), is_uneven

    def _assignments(
        self, value: ir.Value
    ) -> Iterator[tuple[int, float, float, float, Mapping[int, Leaf]]]:
        """Yields the assignments for logits: in the last ones several floats are masks, comparisons
        of data have any result, integers are large, what is added is low, and all scores are low or
        high: a clip of low ones shows where a row has no others."""
        for each in _ASSIGNMENTS:
            yield *each, {}
        floats = self.reader.floats(value)
        if len(floats) > 1:
            share = 1 - (2 * self.length) ** -0.5  # few keys are seen by two masks, some by one
            masks = {number: masking(number, share) for number in floats}
            yield len(_ASSIGNMENTS) + 1, 1.0, 0.7, 1.0, masks
        for seed, magnitude, true, of_floats in _ASSIGNMENTS:
            is_plain = magnitude == of_floats == 1.0
            if is_plain and (decisions := self.reader.decisions(self.weights, seed, true)):
                yield seed, magnitude, true, of_floats, decisions
        if self.shift(value) is not None:
            # A mask behind the exponential shows where it hides the largest score of a row, from
            # which the others are far enough that nothing of them is left.
            for magnitude, true in itertools.product(_MAGNITUDES[1:], (0.02, 0.2, 0.5)):
                seed += 1
                yield seed, magnitude, true, 1.0, {}
                if decisions := self.reader.decisions(self.weights, seed, true):
                    yield seed, magnitude, true, 1.0, decisions
        if large := self.reader.integers(self.weights, 1):
            yield *_ASSIGNMENTS[0], large
        for low in self.reader.terms(value, differ=0.1):
            yield *_ASSIGNMENTS[0], low
        _, magnitude, offset, _ = _MAGNITUDES
        scores = self.reader.scores(len(_ASSIGNMENTS), magnitude)
        for all_scores in (shifted(scores, -offset), shifted(scores, offset)):
            moved = {self.reader.number: all_scores}
            yield len(_ASSIGNMENTS), magnitude, 1.0, 1.0, moved

    def _kind_of_empty(self, weights: Numbers, logits: Numbers, alone: Numbers) -> EmptyRows:
        """Returns what is nearer to weights that the program rounds as it does: a sum with a large
        number that masks keeps nothing of the scores, or much. ``alone`` are weights by what is
        added."""
        if not np.all(np.abs(weights.sum(1) - 1) <= _ROUNDING):
            # A logarithm of a sum next to a large number is lost.
            raise NotPossibleError(EMPTY_ROWS)
        from_added = np.abs(weights - alone).sum()
        from_softmax = np.abs(weights - softmax(logits)).sum()
        return EmptyRows.AVERAGE if from_added <= from_softmax else EmptyRows.SOFTMAX

    def _scale(self, value: ir.Value, of_logarithm: bool) -> float:
        """Returns the factor of the scores, where that is one number at every point and magnitude.

        Raises NotPossibleError for another function of the scores.
        """
        reader, shift = self.reader, self.shift(value)
        where = reader.scattered(_SCATTERED, self._rare)
        if shift is not None:  # each row has a maximum
            where = reader.rows(self.key, _SCATTERED // self.length, self._rare)
        places = linear(where, reader.sizes)
        scale: float | None = None
        for seed, true, is_decided in ((1, 0.7, False), (2, 1.0, False), (3, 0.5, True)):
            decisions = reader.decisions(value, seed, true) if is_decided else {}
            if is_decided and not decisions:
                continue
            points = reader.points(seed, zero, true, leaves=decisions | self._shifted(value))
            start = self.logits_at(points, value, of_logarithm, where)
            samples = [(magnitude, reader.scores(seed, magnitude)) for magnitude in _MAGNITUDES]
            if shift is not None:  # beside their maximum low scores do not show
                near = reader.scores(seed, _MAGNITUDES[1])
                samples += [(x, shifted(near, s * x)) for x in _MAGNITUDES[2:] for s in (-1, 1)]
            for magnitude, scores in samples:
                given = scores(places)
                points = reader.points(seed, scores, true, leaves=decisions)
                logits = self.logits_at(points, value, of_logarithm, where)
                with np.errstate(all="ignore"):
                    change = np.where(logits == start, 0.0, logits - start)
                    is_far = np.abs(start) > 1e3 * np.abs(given)
                    masked = (start <= MASKED) & ((change == 0) | is_far)
                    ratio = change / given
                    finite = np.isfinite(logits) if of_logarithm else np.ones(len(logits), bool)
                    largest = np.max(np.abs(start[~masked & np.isfinite(start)]), initial=0)
                if np.any(is_far & (start <= MASKED) & (logits > MASKED)):
                    raise NotPossibleError(NOT_SCALED)  # a mask of the scores' own
                live = ~masked & finite
                if of_logarithm and magnitude > 1e2 and shift is None:
                    continue  # the exponential overflows
                if scale is None and live.any():
                    scale = float(np.median(ratio[live]))
                if scale is None:
                    continue
                error = (1e-5 + 1e-9 * largest / magnitude) * max(abs(scale), 1e-3)
                power = start + scale * given - reader.subtracted(points, where, shift)
                if not np.all(np.abs(ratio[live] - scale) <= error) or np.any(
                    np.abs(power[~masked & ~finite]) < _UNDERFLOW
                ):
                    raise NotPossibleError(NOT_SCALED)
        if scale is None:
            raise NotPossibleError(NO_SOFTMAX)
        return scale

    def _depends(self, value: ir.Value) -> frozenset[int]:
        groups = self.reader.groups(value)
        return axes_of(
            self.reader.scope,
            value,
            self.reader.number,
            [frozenset(group) for group in groups],
            *self._shifted(value),
        )

    def _mask(
        self, value: ir.Value, of_logarithm: bool, query: int | None, depends: frozenset[int]
    ) -> Mask | None:
        """Returns the mask that the logits without the scores are, at every position; None if they
        are no mask."""
        reader, key = self.reader, self.key
        if query is None or depends != {query, key} or reader.sizes[query] != self.length:
            return None
        if any(
            reader.scope.made_by(each) is None and reader.scope.number(each) != reader.number
            for each in reader.derivation.region(value, reader.number, *self._shifted(value))
        ):
            return None  # data
        for where in self._all_positions(value, query):
            points = reader.points(1, zero, 1.0, leaves=self._shifted(value))
            rest = self.logits_at(points, value, of_logarithm, where)
            behind = where[query] - where[key]
            seen = rest > MASKED
            window = int(behind[seen].max()) + 1 if seen.any() else 0
            if window <= 0 or not np.array_equal(seen, (behind >= 0) & (behind < window)):
                return None
            if np.any(rest[seen] != rest[seen][0]):
                return None
            return Mask(causal=True, window=0 if window == self.length else window)
        return None

    def _all_positions(self, value: ir.Value, query: int) -> Iterator[Coordinates]:
        """Yields positions that stand for all: those of each difference where the value is a
        function of that alone, else all; nothing where these are too many."""
        length = self.length
        if self._is_of_difference(value, query):
            apart = np.arange(1 - length, length)
            queries, keys = np.maximum(apart, 0), np.maximum(-apart, 0)
        elif length <= WHOLE_GRID:
            queries = np.repeat(np.arange(length), length)
            keys = np.tile(np.arange(length), length)
        else:
            return
        yield self._placed({query: queries, self.key: keys})

    def _masked_rows(
        self, value: ir.Value, of_logarithm: bool, query: int | None
    ) -> tuple[Row, ...]:
        """Returns some of the rows whose keys are all masked whatever the data are, the first and
        the last of them: no sample of rows would be sure to have one.

        Raises NotPossibleError where too many positions would have to be looked at.
        """
        reader, key = self.reader, self.key
        groups = reader.groups(value)
        of, ends = [frozenset(group) for group in groups], self._shifted(value)
        axes = axes_of(reader.scope, value, reader.number, of, *ends, data_varies=False)
        if not axes:
            return ()
        seen = [axis for axis in sorted(axes) if axis != key]
        keys = np.arange(self.length if key in axes else 1)
        if (
            query is not None
            and seen == [query]
            and self._is_of_difference(value, query, data_varies=False)
        ):
            return self._masked_by_difference(value, of_logarithm, query)
        sizes = [reader.sizes[axis] for axis in seen]
        count = math.prod(sizes)
        if count * len(keys) > WHOLE_GRID**2:
            raise NotPossibleError(f"its mask has more than {WHOLE_GRID} x {WHOLE_GRID} constants")
        at = unraveled(np.repeat(np.arange(count), len(keys)), sizes)
        where = self._placed({**dict(zip(seen, at, strict=True)), key: np.tile(keys, count)})
        found: dict[int, None] = {}
        for true in (0.0, 1.0):
            decisions = reader.decisions(value, 1, true)
            points = reader.points(1, zero, true, leaves=decisions | self._shifted(value))
            rest = self.logits_at(points, value, of_logarithm, where)
            masked = np.flatnonzero(~(rest.reshape(count, -1) > MASKED).any(1))
            if len(masked) < count:
                found |= dict.fromkeys([*masked[:_MASKED_ROWS], *masked[-_MASKED_ROWS:]])
        coordinates = (unraveled(np.array([row]), sizes) for row in found)
        return tuple(
            tuple((axis, int(x[0])) for axis, x in zip(seen, each, strict=True))
            for each in coordinates
        )

    def _masked_by_difference(
        self, value: ir.Value, of_logarithm: bool, query: int
    ) -> tuple[Row, ...]:
        """Returns the same where a mask is a function of the difference of query and key."""
        reader, key = self.reader, self.key
        queries = reader.sizes[query]
        apart = np.arange(1 - self.length, queries)
        where = self._placed({query: np.maximum(apart, 0), key: np.maximum(-apart, 0)})
        found: dict[int, None] = {}
        for true in (0.0, 1.0):
            decisions = reader.decisions(value, 1, true)
            points = reader.points(1, zero, true, leaves=decisions | self._shifted(value))
            rest = self.logits_at(points, value, of_logarithm, where)
            before = np.concatenate([[0], np.cumsum(rest > MASKED)])
            # A row has the differences from its position less the last key's to its position.
            masked = np.flatnonzero(before[self.length :] == before[:queries])
            if len(masked) < queries:
                found |= dict.fromkeys([*masked[:_MASKED_ROWS], *masked[-_MASKED_ROWS:]])
        return tuple(((query, int(row)),) for row in found)

    def _placed(self, axes: Mapping[int, Integers]) -> Coordinates:
        """Returns points by some coordinates, the others 0."""
        nothing = np.zeros_like(next(iter(axes.values())))
        return tuple(axes.get(axis, nothing) for axis in range(len(self.reader.sizes)))

    def _is_of_difference(self, value: ir.Value, query: int, *, data_varies: bool = True) -> bool:
        """Whether a value is a function of the difference of query and key alone."""
        lines: list[Line | None] = [
            Line(1, 0, 0) if group == (query,) else Line(0, 1, 0) if group == (self.key,) else None
            for group in self.reader.groups(value)
        ]
        reader = self.reader
        return depends_on_difference(
            reader.scope,
            value,
            reader.number,
            lines,
            *self._shifted(value),
            data_varies=data_varies,
        )

    def _bias_numbers(self, value: ir.Value, of_logarithm: bool) -> tuple[float, ...]:
        reader = self.reader
        where = reader.scattered(_BIAS_SAMPLES, self._rare)
        found: list[Floats] = []
        for leaves in ({}, reader.decisions(value, 3, 0.5), reader.integers(value, 3)):
            if leaves or not found:
                points = reader.points(3, zero, leaves=leaves | self._shifted(value))
                rest = self.logits_at(points, value, of_logarithm, where)
                # Integers are masks or positions: a mask's number times others means nothing.
                most = math.inf if not found else -MASKED
                found.append(rest[(rest > MASKED) & (rest < most)])
        return tuple(float(number) for number in np.unique(np.concatenate(found)))


def softmax(logits: Numbers) -> Floats:
    """Returns the softmax of rows."""
    with np.errstate(all="ignore"):
        large = np.exp(logits - logits.max(1, keepdims=True))
        found: Floats = large / large.sum(1, keepdims=True)
    return found


def held_by(numbers: tuple[float, ...], element: str) -> bool:
    """Whether numbers are unchanged by rounding to an element type."""
    if element == "f32":
        return True  # as the program's own are rounded
    given = np.array([number for number in numbers if math.isfinite(number)])
    return bool(np.array_equal(rounded(given, element), given))
