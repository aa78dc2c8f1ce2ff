"""Finds attention and gradients in a scope: weights by their exponentials, then their readers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.manual_pairs import ManualPair
from ..analysis.points.derivation import Derivation, Groups
from ..analysis.points.evaluator import TooManyPointsError
from ..analysis.points.operations import EXPONENTIALS, How, how, is_of_sums
from ..framework.errors import NotPossibleError
from ..framework.tables import Described, Left
from ..ir import walk
from ..ir.products import ProductAxes
from ..ir.values import defining_op, shape_of
from .gradient import GradientReader
from .products import ForwardRead, Products, Scored
from .reader import Forms, Logits, Reader
from .scopes import BorderedScope
from .site import Border, EmptyRows, ScoreAxes
from .softmax import SoftmaxReader


@dataclass(frozen=True)
class Found:
    """An attention of a scope.

    Attributes:
      forwards: the products of its weights and values; several where a checkpoint repeats them.
      logits: what the weights are the softmax of.
      empty_rows: the weights of rows without a key.
      gradients: its gradients.
    """

    forwards: tuple[ForwardRead, ...]
    logits: Logits
    empty_rows: EmptyRows
    gradients: tuple[Products, ...]


@dataclass(frozen=True)
class _Reading:
    """An operand of a product, and by number the results of other products in it."""

    product: ir.Operation
    side: int
    sources: dict[int, ir.Value]


def may_have_weights(module: ir.Module) -> bool:
    """Whether an exponential of a module has as many elements as a product: those of weights have
    as many as their scores."""
    exponentials: list[ir.Operation] = []
    products: list[ir.Operation] = []
    for op in walk.operations(module.operation):
        name = op.name
        if name in EXPONENTIALS:
            exponentials.append(op)
        elif name == "stablehlo.dot_general":
            products.append(op)
    sizes, others = (
        {math.prod(shape_of(op.results[0])) for op in ops} for ops in (exponentials, products)
    )
    return not sizes.isdisjoint(others)


class Finder:
    """Finds the attentions of one scope.

    Attributes:
      left: what looks like attention and stays, with the reasons.
    """

    def __init__(self, found: BorderedScope, forms: Forms, min_keys: int) -> None:
        self.borders, self.forms, self.min_keys = found.borders, forms, min_keys
        self.scope = found.scope
        self.derivation = Derivation(self.scope)
        self.left: list[Left] = []

    def find(self) -> Iterator[Found]:
        """Yields the attentions, in the order of the program."""
        softened = self._softened()
        if not softened:
            return
        readings = list(self._readings(softened))
        for number, origin in softened.items():
            mine = [each for each in readings if number in each.sources]
            if not mine:
                continue
            try:
                found = self._attention(number, origin, mine)
            except NotPossibleError as error:
                self._leave(error.op or mine[0].product, error.reason)
            except TooManyPointsError:
                self._leave(mine[0].product, "its rows are too long to look at")
            else:
                if found is not None:
                    yield found

    def _leave(self, op: ir.Operation, reason: str) -> None:
        self.left.append(Left(Described.of(op), reason))

    def _ops(self) -> Iterator[ir.Operation]:
        for block in self.scope.blocks:
            for view in block.operations:
                yield view.operation

    def _softened(self) -> dict[int, ir.Value]:
        """Returns, by number, results of products that exponentials are computed from."""
        exponentials: list[ir.Value] = []
        sizes: set[int] = set()  # what is computed element by element has the product's size
        for op in self._ops():
            if op.name in EXPONENTIALS:
                exponentials.append(op.results[0])
            elif is_of_sums(op):
                sizes.add(math.prod(shape_of(op.results[0])))
        found: dict[int, ir.Value] = {}
        for value in exponentials:
            if math.prod(shape_of(value)) in sizes and self.scope.made_by(value) is not None:
                for product in sorted(self.derivation.products(value), key=self.scope.number):
                    found.setdefault(self.scope.number(product), product)
        return found

    def _readings(self, softened: dict[int, ir.Value]) -> Iterator[_Reading]:
        for op in self._ops():
            if not is_of_sums(op):
                continue
            for side, value in enumerate(op.operands):
                if len(shape_of(value)) < 2:
                    continue
                resolved = self.scope.resolve(value)
                made_of = self.derivation.products(value) - {resolved}
                sources = {
                    self.scope.number(each): each for each in sorted(made_of, key=self.scope.number)
                }
                if not softened.keys().isdisjoint(sources):
                    yield _Reading(op, side, sources)

    def _attention(self, number: int, origin: ir.Value, readings: list[_Reading]) -> Found | None:
        reader = Reader(self.derivation, number, origin)
        forwards, found, rest = [], None, []
        for each in readings:
            forward = None
            if len(each.sources) == 1:
                forward = self._forward(number, origin, each)
            if forward is None:
                rest.append(each)
            else:
                forwards.append(forward[0])
                found = found or forward[1]
        if found is None:
            self._check_output(reader, rest)
            return None
        if len({(f.axes, f.scale) for f in forwards}) > 1:
            raise NotPossibleError("the weights are read along different axes")
        scored, dp_of = [], {}
        reader = Reader(self.derivation, number, origin)
        for place, each in enumerate(rest):
            for source in each.sources:
                self.derivation.split_by(each.product.operands[each.side], source)
            scored.append(
                Scored(each.product, each.side, reader.groups(each.product.operands[each.side]))
            )
            others = [value for source, value in each.sources.items() if source != number]
            if len(others) > 1:
                raise NotPossibleError("more than two products of scores meet", each.product)
            if others:
                dp_of[place] = others[0]
        gradient_reader = GradientReader(reader, forwards[0], self.forms)
        for again in forwards[1:]:
            gradient_reader.check_repeated(again)
        gradients = gradient_reader.read(scored, dp_of, has_bias=bool(found.bias_axes))
        empty = self._empty_rows(found, gradients)
        result = Found(tuple(forwards), found, empty, tuple(gradients))
        self._check_readers(number, result)
        return result

    def _check_output(self, reader: Reader, readings: Sequence[_Reading]) -> None:
        """Raises NotPossibleError where the weights of an attention are read by the gradient of its
        values alone: nothing needs its output, which the kernel's gradient reads."""
        for each in readings:
            value = each.product.operands[each.side]
            groups = self.derivation.groups(value, reader.number)
            if len(each.sources) > 1 or groups is None:
                continue
            if not self.derivation.has_exponential(value):
                continue
            scored = Scored(each.product, each.side, groups)
            free = {axis for place in scored.axes[0].free for axis in groups[place]}
            if len(free) != 1:
                continue
            [key] = free
            softmax = SoftmaxReader(reader, value, key, tuple(sorted(scored.summed)))
            if softmax.is_reduced_along_keys() and softmax.is_normalized():
                raise NotPossibleError("nothing reads its output", each.product)

    def _empty_rows(self, logits: Logits, gradients: list[Products]) -> EmptyRows:
        """Returns the weights of rows without a key, as the program and its gradients have them."""
        kinds = {each.empty_rows for each in gradients if each.empty_rows is not None}
        if len(kinds) > 1:
            raise NotPossibleError("rows without a key have gradients of two kinds")
        if kinds == {EmptyRows.AVERAGE} and logits.empty_rows is EmptyRows.SOFTMAX:
            raise NotPossibleError("rows without a key have a softmax, and no gradient of it")
        found = next(iter(kinds), logits.empty_rows)
        if found is EmptyRows.SOFTMAX and logits.empty_rows is EmptyRows.AVERAGE:
            return EmptyRows.UNEVEN if logits.is_uneven else EmptyRows.FLAT
        return found

    def _forward(
        self, number: int, origin: ir.Value, reading: _Reading
    ) -> tuple[ForwardRead, Logits] | None:
        """Returns the attention whose weights a product's operand is; None where it is none, and
        does not look like one. Raises NotPossibleError."""
        derivation = self.derivation
        value = reading.product.operands[reading.side]
        if not derivation.has_exponential(value):
            return None
        derivation.split_by(value, number)
        groups = derivation.groups(value, number)
        if groups is None:
            return None
        reader = Reader(derivation, number, origin)
        weights = Scored(reading.product, reading.side, groups)
        if len(weights.summed) != 1:
            return None
        [key] = weights.summed
        scores = defining_op(derivation.origin(value, number))
        assert scores is not None
        parts = derivation.axes(number, origin)
        split = _sides(scores, parts, reader.sizes)
        if key not in split.left | split.right:
            return None
        query_side = 0 if key in split.right else 1
        queries, keys = (split.left, split.right) if query_side == 0 else (split.right, split.left)
        softmax = SoftmaxReader(reader, value, key, tuple(sorted(queries)))
        form = reader.form(value)
        if not softmax.is_reduced_along_keys():
            return None
        if not softmax.is_normalized():
            if not split.batch or not softmax.may_be_meant():
                return None
            raise NotPossibleError(
                "its weights are no softmax of the scores along the keys", reading.product
            )
        if keys != {key}:
            raise NotPossibleError("its keys have more than one axis", reading.product)
        batch = {axis for each in weights.axes[0].batch for axis in groups[each]}
        if batch != split.batch:
            raise NotPossibleError(
                "queries and keys share other axes than weights and values", reading.product
            )
        if reader.sizes[key] < self.min_keys:
            raise NotPossibleError(
                f"{reader.sizes[key]} keys, fewer than min_keys={self.min_keys}", reading.product
            )
        mark = form, groups, key, tuple(sorted(queries))
        if mark not in self.forms.logits:
            try:
                self.forms.logits[mark] = softmax.logits()
            except NotPossibleError as error:
                self.forms.logits[mark] = error.reason
        logits = self.forms.logits[mark]
        if isinstance(logits, str):
            raise NotPossibleError(logits, reading.product)
        ordered = [axis for axis in range(len(reader.sizes)) if axis in split.batch]
        axes = ScoreAxes(
            tuple(reader.sizes),
            tuple(ordered[:-1] if len(ordered) > 1 else ordered),
            tuple(ordered[-1:] if len(ordered) > 1 else ()),
            tuple(axis for axis in sorted(queries) if axis != logits.query),
            logits.query,
            key,
        )
        read = softmax.candidates()[logits.place]
        forward = ForwardRead(
            weights,
            scores,
            parts,
            axes,
            query_side,
            logits.scale,
            read,
            logits.of_logarithm,
            softmax.shift(read),
            logits.masked_rows,
        )
        return forward, logits

    def _check_readers(self, number: int, found: Found) -> None:
        """Raises NotPossibleError where an operation other than the replaced products needs the
        scores, the weights or values computed from them."""
        replaced = {(walk.key(f.weights.product), f.weights.side) for f in found.forwards}
        ends = set()
        for gradient in found.gradients:
            for scored in gradient.scored:
                replaced.add((walk.key(scored.product), scored.side))
            ends |= {walk.key(each.op) for each in gradient.bias}
        passed = _passed(self.borders)
        waiting: list[ir.Value] = [
            result
            for op in self._ops()
            if is_of_sums(op)
            for result in op.results
            if self.scope.number(result) == number
        ]
        seen: set[ir.Value] = set()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            for use in value.uses:
                op = use.owner.operation
                key = walk.key(op)
                if (key, use.operand_number) in replaced or key in ends:
                    continue
                if op.block not in self.scope.blocks:
                    raise NotPossibleError(f"{self._told(value, found)} read by code inside", op)
                if (key, use.operand_number) in passed:
                    waiting += passed[key, use.operand_number]
                elif how(op) is How.SAME:
                    waiting.append(op.results[use.operand_number])
                elif how(op) is not None:
                    waiting += op.results
                elif not _is_dead(op):
                    raise NotPossibleError(f"{self._told(value, found)} read elsewhere, too", op)

    def _told(self, value: ir.Value, found: Found) -> str:
        """Returns what a value is, that is computed from an attention's scores."""
        scope, scores = self.scope, [each.scores for each in found.gradients]
        of_weights = {scope.number(each.dp.results[0]) for each in scores if each is not None}
        number = scope.number(found.forwards[0].scores.results[0])
        numbers = map(scope.number, self.derivation.region(value, number))
        is_gradient = not of_weights.isdisjoint(numbers)
        return "the gradient of its scores is" if is_gradient else "its weights are"


def _passed(borders: Sequence[Border]) -> dict[tuple[object, int], Sequence[ir.Value]]:
    """Returns, by operation and operand that pass a value on through the last border, its reads
    behind it, where these are all."""
    if not borders:
        return {}
    border = borders[-1]
    if isinstance(border, ManualPair):
        forward, backward = border.bodies
        end = walk.key(walk.terminator(forward))
        return {
            (end, each.result): [backward.arguments[number] for number in each.operands]
            for each in border.passed
            if each.is_alone
        }
    return {(walk.key(each.stack.update), 1): each.reads for each in border.residuals}


def _is_dead(op: ir.Operation) -> bool:
    return bool(len(op.results)) and not any(True for result in op.results for _ in result.uses)


@dataclass(frozen=True)
class _Sides:
    """The scores' axes, by the operands of their product that have them."""

    batch: frozenset[int]
    left: frozenset[int]
    right: frozenset[int]


def _sides(product: ir.Operation, parts: Groups, sizes: list[int]) -> _Sides:
    axes = ProductAxes.of(product)
    start = len(axes.left.batch)
    middle = start + len(axes.left.free)

    def flat(groups: Groups) -> frozenset[int]:
        return frozenset(axis for group in groups for axis in group if sizes[axis] > 1)

    return _Sides(flat(parts[:start]), flat(parts[start:middle]), flat(parts[middle:]))
