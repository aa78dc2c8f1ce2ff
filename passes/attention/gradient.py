"""Reads the gradients of an attention: it finds their products, and checks that they are those of a
softmax."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jax.extend.mlir import ir

from ..analysis.points.derivation import Groups
from ..analysis.points.evaluator import Coordinates, Points, are_close, linear
from ..analysis.points.leaves import Leaf, Numbers, masking, scaled
from ..analysis.points.operations import How
from ..analysis.points.positions import Positions, source_of_elements
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.products import ProductAxes
from ..ir.values import defining_op, shape_of
from .products import ForwardRead, GradientOfScores, Products, Scored, operand_labels, other_operand
from .reader import Forms, Reader
from .site import HEAD, SCORES, VALUE, EmptyRows, Labelled, Replaced
from .softmax import MASKED

_SAMPLES = 64

_NO_SCORES = 0
"""A number that no value has."""

_MOST_OPERATIONS = 300

_MAY_BE_A_MASK = (
    "what is added beside its mask may be a mask, too: rows without a key would have another "
    "gradient"
)

_AS_MASKS = ((0.7, 0.9), (0.7, 0.9), (0.02, 0.9))
"""Shares of true booleans, and of large negative floats: most, since few rows see few keys."""

_ASSIGNMENTS = (
    (1, 1.0, 0.7, 1.0, 1.0),
    (2, 4.0, 0.9, 1e6, 1.0),
    (3, 1.0, 1.0, 1e-6, 1.0),
    (4, 1.0, 0.0, 1.0, 1.0),
    (5, 1.0, 0.02, 1.0, 1.0),
    (6, 1.0, 0.7, 1.0, -1e9),
    (7, 1.0, 0.2, 1.0, 1.0),
)
"""Seeds, magnitudes of the scores, shares of true booleans, magnitudes of the weights' gradient and
of other floats."""


class GradientReader:
    """Reads the gradients of one attention."""

    def __init__(self, reader: Reader, forward: ForwardRead, forms: Forms) -> None:
        self.reader, self.forward, self.forms = reader, forward, forms
        self.key = forward.axes.key

    def read(
        self, scored: Sequence[Scored], dp_of: Mapping[int, ir.Value], has_bias: bool
    ) -> list[Products]:
        """Returns the gradients among products that read something computed from the scores.

        Args:
          scored: these products' operands.
          dp_of: by number of an operand in ``scored`` the other product that it is computed from.
          has_bias: whether the gradients of a bias are wanted.

        Raises NotPossibleError where a product is none of a gradient's.
        """
        weights = [each for number, each in enumerate(scored) if number not in dp_of]
        pairs: dict[int, list[tuple[Scored, ir.Value]]] = {}
        for number, leaf in dp_of.items():
            pairs.setdefault(self.reader.scope.number(leaf), []).append((scored[number], leaf))
        found = []
        for dp_number, readers in pairs.items():
            products = self._gradient(dp_number, readers, weights, has_bias)
            if products.dv is not None:
                weights.remove(products.dv)
            found.append(products)
        for each in weights:
            if pairs or not self._gives_values(each):
                raise NotPossibleError("the weights are read by another product", each.product)
            found.append(Products(self.forward, None, each))
        return found

    def _gives_values(self, scored: Scored) -> bool:
        """Whether a product of the weights is the gradient of values, of what it reads besides."""
        free = {axis for each in scored.axes[0].free for axis in scored.groups[each]}
        return (
            scored.summed == {*self.forward.axes.queries}
            and free == {self.key}
            and other_operand(scored, VALUE).sizes(VALUE) == self.forward.values.sizes(VALUE)
            and self._is_weights(scored)
        )

    def _gradient(
        self,
        dp_number: int,
        readers: Sequence[tuple[Scored, ir.Value]],
        weights: Sequence[Scored],
        has_bias: bool,
    ) -> Products:
        dq: Scored | None = None
        dk: Scored | None = None
        empty: EmptyRows | None = None
        for each, _ in readers:
            empty = _of_one_kind(empty, self._check(each, dp_number, self.forward.scale))
            if each.summed == {self.key} and dq is None:
                dq = each
            elif each.summed == {*self.forward.axes.queries} and dk is None:
                dk = each
            else:
                raise NotPossibleError("a gradient of the scores is read by another product")
        first = dq or dk
        dp = defining_op(readers[0][1])
        assert first is not None
        assert dp is not None
        dp_axes = self._dp_axes(first, dp_number)
        side = self._value_side(dp, dp_axes)
        dv = next((each for each in weights if self._is_dv(each, dp, side, dp_axes)), None)
        if dv is None and weights:
            raise NotPossibleError("the product that gives the values' gradient is not there")
        bias = self._bias(first, dp_number, empty) if has_bias else ()
        scores = GradientOfScores(dq, dk, dp, side, dp_axes, empty, bias)
        found = Products(self.forward, scores, dv)
        self._check_operands(found)
        return found

    def _check(self, scored: Scored, dp_number: int, scale: float) -> EmptyRows | None:
        """Raises NotPossibleError where an operand is not the gradient of a softmax times a factor;
        returns what rows without a key say."""
        forward = self.forward
        values = scored.value, forward.weights.value, forward.logits
        form = self.reader.form(*values, marked=dp_number)
        mark = form, scored.groups, self.key, scale, forward.of_logarithm
        if mark not in self.forms.gradients:
            try:
                self.forms.gradients[mark] = self._checked(scored, dp_number, scale)
            except NotPossibleError as error:
                self.forms.gradients[mark] = error.reason
        found = self.forms.gradients[mark]
        if isinstance(found, str):
            raise NotPossibleError(found)
        return found

    def _checked(self, scored: Scored, dp_number: int, scale: float) -> EmptyRows | None:
        reader, forward = self.reader, self.forward
        if reader.derivation.groups(scored.value, dp_number) is None:
            raise NotPossibleError("the gradient of the scores is not elementwise")
        positions = reader.positions
        if not positions.tables(scored.value) <= positions.tables(forward.weights.value):
            raise NotPossibleError("the gradient of the scores is changed at some positions")
        rows = self._sample(scored)
        length = reader.sizes[self.key]
        empty: EmptyRows | None = None
        for seed, magnitude, true, large, floats, low in self._assignments(scored.value):
            leaves = {
                reader.number: reader.scores(seed, magnitude),
                dp_number: scaled(dp_number * 1000 + seed + 1, large),
                **low,
            }
            points = Points(reader.scope, seed, leaves, true, floats)
            found = self._rows(points, scored.value, rows, length)
            weights = self._rows(points, forward.weights.value, rows, length)
            dp = self._dp(points, scored, dp_number, rows).reshape(-1, length)
            logits = reader.logits_at(
                points, forward.logits, rows, forward.shift, of_logarithm=forward.of_logarithm
            ).reshape(-1, length)
            with np.errstate(all="ignore"):
                wanted = scale * weights * (dp - (weights * dp).sum(1, keepdims=True))
            finite = np.isfinite(weights).all(1)
            seen = (logits > MASKED).any(1) & finite
            if not are_close(found[seen] / large, wanted[seen] / large, 1e-5):
                raise NotPossibleError("the gradient of the scores is not that of a softmax")
            rest = ~seen & finite
            if rest.any():
                try:
                    kind = self._kind_of_empty(found[rest] / large, wanted[rest] / large)
                    empty = _of_one_kind(empty, kind)
                except NotPossibleError as error:
                    if floats > 0 and not low:
                        raise
                    raise NotPossibleError(_MAY_BE_A_MASK) from error
        return empty

    def _assignments(
        self, value: ir.Value
    ) -> Iterator[tuple[int, float, float, float, float, dict[int, Leaf]]]:
        """Yields the assignments, each with leaves of its own: a leaf of floats that alone is a
        mask, since each of them may be an argument of large negative numbers, or comparisons."""
        for each in _ASSIGNMENTS:
            yield *each, {}
        seed = len(_ASSIGNMENTS)
        floats = self.reader.floats(self.forward.logits)
        for number, (true, share) in itertools.product(floats, _AS_MASKS):
            seed += 1
            yield seed, 1.0, true, 1.0, 1.0, {number: masking(seed, share)}
        yield from self._decided(value)

    def _decided(
        self, value: ir.Value
    ) -> Iterator[tuple[int, float, float, float, float, dict[int, Leaf]]]:
        """Yields assignments in which comparisons of data, in the weights and in a value, have any
        result, integers are large, or what is added to the scores is low."""
        for seed, magnitude, true, large, floats in _ASSIGNMENTS:
            if not magnitude == floats == 1.0:
                continue
            found = self.reader.decisions(self.forward.weights.value, seed, true)
            found |= self.reader.decisions(value, seed, true)
            if found:
                yield seed, magnitude, true, large, floats, found
        if integers := self.reader.integers(value, 1):
            yield *_ASSIGNMENTS[0], integers
        for low in self.reader.terms(self.forward.logits, differ=0.0):
            yield *_ASSIGNMENTS[0], low

    def _kind_of_empty(self, found: Numbers, wanted: Numbers) -> EmptyRows | None:
        if not np.any(wanted):
            return None
        if not np.any(found):
            return EmptyRows.AVERAGE
        if are_close(found, wanted, 1e-5):
            return EmptyRows.SOFTMAX
        raise NotPossibleError("the gradient of rows without a key is not that of a softmax")

    def _sample(self, scored: Scored) -> Coordinates:
        """Returns rows of keys, masked ones and those of rare positions among them."""
        rare = self.reader.rare(scored.value, scored.groups)
        return self.reader.rows(self.key, given=(*self.forward.masked_rows, *rare))

    def _rows(self, points: Points, value: ir.Value, rows: Coordinates, length: int) -> Numbers:
        return self.reader.at(points, value, rows).reshape(-1, length)

    def _dp(self, points: Points, scored: Scored, dp_number: int, rows: Coordinates) -> Numbers:
        """Returns the gradient of the weights, read as the scored operand reads it."""
        reader = self.reader
        at = tuple(
            linear(tuple(rows[axis] for axis in group), [reader.sizes[axis] for axis in group])
            if group
            else np.zeros_like(rows[0])
            for group in scored.groups
        )
        origin = reader.derivation.origin(scored.value, dp_number)
        return points.at(origin, reader.derivation.follow(scored.value, dp_number, at))

    def _dp_axes(self, scored: Scored, dp_number: int) -> Groups:
        """Returns by axis of the weights' gradient's product the scores' axes."""
        derivation = self.reader.derivation
        groups = derivation.groups(scored.value, dp_number)
        origin = derivation.origin(scored.value, dp_number)
        sizes = derivation.sizes(dp_number, origin)
        found: dict[int, tuple[int, ...]] = {}
        assert groups is not None
        for mine, theirs in zip(scored.groups, groups, strict=True):
            if len(theirs) == 1:
                found[theirs[0]] = mine
                continue
            if [self.reader.sizes[a] for a in mine] != [sizes[a] for a in theirs]:
                raise NotPossibleError("the axes of the weights' gradient are merged otherwise")
            found |= {their: (my,) for my, their in zip(mine, theirs, strict=True)}
        return tuple(
            tuple(axis for part in group for axis in found.get(part, ()))
            for group in derivation.axes(dp_number, origin)
        )

    def _value_side(self, dp: ir.Operation, axes: Groups) -> int:
        found = ProductAxes.of(dp)
        start = len(found.left.batch)
        middle = start + len(found.left.free)
        left = {axis for group in axes[start:middle] for axis in group}
        right = {axis for group in axes[middle:] for axis in group}
        queries = {*self.forward.axes.queries}
        if left == {self.key} and right == queries:
            return 0
        if right == {self.key} and left == queries:
            return 1
        raise NotPossibleError("the weights' gradient has other axes than the weights")

    def _is_dv(self, scored: Scored, dp: ir.Operation, side: int, axes: Groups) -> bool:
        """Whether a product of the weights sums what the weights' gradient is computed from."""
        if scored.summed != {*self.forward.axes.queries} or not self._is_weights(scored):
            return False
        mine = Labelled(dp.operands[1 - side], operand_labels(dp, 1 - side, axes, VALUE))
        return self._are_same(mine, other_operand(scored, VALUE), VALUE)

    def check_repeated(self, again: ForwardRead) -> None:
        """Raises NotPossibleError where another product of weights of the same scores is not the
        same attention, as a checkpoint repeats it: of another mask, or of other values."""
        number = self.reader.scope.number
        forward = self.forward
        is_same = number(forward.weights.value) == number(again.weights.value)
        if not (is_same and self._are_same(forward.values, again.values, VALUE)):
            raise NotPossibleError("its scores are those of another attention, too")

    def _is_weights(self, scored: Scored) -> bool:
        """Whether an operand is the weights themselves, and not another function of the scores."""
        reader, forward = self.reader, self.forward
        if reader.scope.number(scored.value) == reader.scope.number(forward.weights.value):
            return True
        form = reader.form(scored.value, forward.weights.value)
        mark = form, scored.groups, forward.weights.groups, self.key
        if mark not in self.forms.weights:
            self.forms.weights[mark] = self._equals_weights(scored)
        return self.forms.weights[mark]

    def _equals_weights(self, scored: Scored) -> bool:
        reader, length = self.reader, self.reader.sizes[self.key]
        positions, weights_value = reader.positions, self.forward.weights.value
        if not positions.tables(scored.value) <= positions.tables(weights_value):
            return False
        rows = self._sample(scored)
        for seed, magnitude, true, _, floats, leaves in (
            *((*each, {}) for each in _ASSIGNMENTS),
            *self._decided(scored.value),
        ):
            points = reader.points(seed, reader.scores(seed, magnitude), true, floats, leaves)
            found = self._rows(points, scored.value, rows, length)
            weights = self._rows(points, weights_value, rows, length)
            finite = np.isfinite(weights).all(1)
            if not are_close(found[finite], weights[finite]):
                return False
        return True

    def _check_operands(self, found: Products) -> None:
        """Raises NotPossibleError where the gradient reads other operands than the attention: the
        kernel computes the weights from those that it is given."""
        forward = self.forward
        for what, mine, theirs, kind in (
            ("queries", forward.queries, found.queries, HEAD),
            ("keys", forward.keys, found.keys, HEAD),
            ("values", forward.values, found.values, VALUE),
        ):
            if not self._are_same(mine, theirs, kind):
                raise NotPossibleError(f"the gradient reads other {what} than the attention does")

    def _are_same(self, left: Labelled, right: Labelled, kind: str) -> bool:
        """Whether two values are the same function of the scores' axes: one value in some order of
        axes, or computed from the same data without a position, so that they cannot differ at one
        alone."""
        letters = left.sizes(kind)
        if letters != right.sizes(kind):
            return False
        reader, scope, read = self.reader, self.reader.scope, [left.value, right.value]
        first, second = (scope.number(source_of_elements(scope, each)) for each in read)
        positions = Positions(reader.derivation, _NO_SCORES)
        if first != second and any(map(positions.tables, read)):
            return False
        regions = [reader.derivation.region(each, _NO_SCORES) for each in read]
        if any(len(each) > _MOST_OPERATIONS for each in regions):
            raise NotPossibleError("its operands are computed from too many values to look at")
        sizes = {(SCORES, axis): size for axis, size in enumerate(reader.sizes)} | dict(letters)
        places = {label: reader.rng.integers(0, size, _SAMPLES) for label, size in sizes.items()}

        def at(points: Points, each: Labelled) -> Numbers:
            where = tuple(
                linear(tuple(places[label] for label in group), [sizes[x] for x in group])
                if group
                else np.zeros(_SAMPLES, np.int64)
                for group in each.labels
            )
            return points.at(each.value, where)

        for seed, _, true, *magnitudes in _ASSIGNMENTS:
            decisions = [reader.decisions(each, seed, true) for each in read]
            for floats in dict.fromkeys(magnitudes):
                points = Points(scope, seed, decisions[0] | decisions[1], true, floats)
                if not are_close(at(points, left), at(points, right)):
                    return False
        return True

    def _bias(
        self, scored: Scored, dp_number: int, empty: EmptyRows | None
    ) -> tuple[Replaced, ...]:
        """Returns the reductions of the gradient of the logits: those of a bias that is read. Rows
        without a key are in it as in the gradient of the scores, ``empty``."""
        reader, found = self.reader, []
        size = math.prod(reader.sizes)
        for view in scored.product.block.operations:
            op = view.operation
            if op.name != "stablehlo.reduce" or math.prod(shape_of(op.operands[0])) != size:
                continue
            made = reader.scope.made_by(op.results[0])
            value = op.operands[0]
            if made is None or made[1] is not How.REDUCTION:
                continue
            if any(
                reader.derivation.step(value, number) is None
                for number in (reader.number, dp_number)
            ):
                continue
            groups = reader.derivation.groups(value, reader.number)
            if groups is None:
                continue
            try:
                kind = self._check(Scored(op, 0, groups), dp_number, 1.0)
            except NotPossibleError:
                continue
            _of_one_kind(empty, kind)
            dimensions = walk.integers(op, "dimensions")
            labels = tuple(
                tuple((SCORES, axis) for axis in group)
                for axis_number, group in enumerate(groups)
                if axis_number not in dimensions
            )
            found.append(Replaced(op, labels))
        return tuple(found)


def _of_one_kind(one: EmptyRows | None, other: EmptyRows | None) -> EmptyRows | None:
    """Returns the kind that two gradients show of rows without a key; None where neither does."""
    if one is not None and other is not None and one is not other:
        raise NotPossibleError("rows without a key have gradients of two kinds")
    return one or other
