"""The products of an attention and of its gradient, as they are read from a program."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.points.derivation import Groups
from ..ir.products import OperandAxes, ProductAxes
from ..ir.values import shape_of
from .reader import Row
from .site import HEAD, SCORES, VALUE, EmptyRows, Label, Labelled, Labels, Replaced, ScoreAxes


@dataclass(frozen=True)
class Scored:
    """An operand of a product, computed from scores, and the scores' axes that its axes are."""

    product: ir.Operation
    side: int
    groups: Groups

    @property
    def value(self) -> ir.Value:
        """Returns the operand."""
        return self.product.operands[self.side]

    @property
    def other(self) -> ir.Value:
        """Returns the other operand."""
        return self.product.operands[1 - self.side]

    @property
    def axes(self) -> tuple[OperandAxes, OperandAxes]:
        """Returns the axes of the operand, and of the other one."""
        found = ProductAxes.of(self.product)
        return (found.right, found.left) if self.side else (found.left, found.right)

    @property
    def summed(self) -> frozenset[int]:
        """Returns the scores' axes that the product sums."""
        return frozenset(axis for each in self.axes[0].contracted for axis in self.groups[each])

    def other_labels(self, kind: str) -> Labels:
        """Returns what the axes of the other operand are; its own ones are of a kind."""
        mine, other = self.axes
        shape = shape_of(self.other)
        found: list[tuple[Label, ...]] = [()] * len(shape)
        for axis, its in zip(
            mine.batch + mine.contracted, other.batch + other.contracted, strict=True
        ):
            found[its] = tuple((SCORES, each) for each in self.groups[axis])
        for number, axis in enumerate(other.free):
            found[axis] = ((kind, number),) if shape[axis] > 1 else ()
        return tuple(found)

    def result_labels(self, kind: str) -> Labels:
        """Returns what the axes of the product's result are."""
        mine, other = self.axes
        shape = shape_of(self.other)
        batch, scored = (
            [tuple((SCORES, each) for each in self.groups[axis]) for axis in axes]
            for axes in (mine.batch, mine.free)
        )
        rest: list[tuple[Label, ...]] = [
            ((kind, number),) if shape[axis] > 1 else () for number, axis in enumerate(other.free)
        ]
        return tuple(batch + (rest + scored if self.side else scored + rest))


def operand_labels(product: ir.Operation, side: int, result: Groups, kind: str) -> Labels:
    """Returns what the axes of an operand are of a product whose result is the scores' axes.

    ``result`` has by axis of the result the scores' axes; those that it sums are of a kind.
    """
    axes = ProductAxes.of(product)
    summed = (axes.right if side else axes.left).contracted

    def labels(axis: int, place: int | None) -> tuple[Label, ...]:
        if place is None:
            return ((kind, summed.index(axis)),)
        return tuple((SCORES, each) for each in result[place])

    shape, places = shape_of(product.operands[side]), axes.places(side)
    return tuple(labels(axis, places[axis]) if size > 1 else () for axis, size in enumerate(shape))


@dataclass(frozen=True)
class ForwardRead:
    """An attention as it was read: its weights, and what they are computed from.

    Attributes:
      weights: the operand of the product with the values.
      scores: the product of queries and keys.
      parts: by axis of that product's result the scores' axes.
      axes: the scores' axes.
      query_side: which operand of that product are the queries.
      scale: the factor of the scores.
      logits: the logits.
      of_logarithm: the logits are the logarithm of that value.
      shift: the subtraction of a row's maximum in that value, which the logits are without.
      masked_rows: rows whose keys are all masked by constants and positions alone.
    """

    weights: Scored
    scores: ir.Operation
    parts: Groups
    axes: ScoreAxes
    query_side: int
    scale: float
    logits: ir.Value
    of_logarithm: bool
    shift: ir.Operation | None
    masked_rows: tuple[Row, ...] = ()

    @property
    def queries(self) -> Labelled:
        """Returns the queries."""
        return self._operand(self.query_side)

    @property
    def keys(self) -> Labelled:
        """Returns the keys."""
        return self._operand(1 - self.query_side)

    @property
    def values(self) -> Labelled:
        """Returns the values."""
        return Labelled(self.weights.other, self.weights.other_labels(VALUE))

    def _operand(self, side: int) -> Labelled:
        labels = operand_labels(self.scores, side, self.parts, HEAD)
        return Labelled(self.scores.operands[side], labels)


@dataclass(frozen=True)
class GradientOfScores:
    """The gradient of an attention's scores, as far as something reads it.

    Attributes:
      dq, dk: the products of the gradients of queries and keys; None for one that nothing reads.
      dp: the product of the gradient of the weights.
      value_side: which operand of that are the values.
      axes: by axis of its result the scores' axes.
      empty_rows: what the gradients say of rows without a key; None where nothing.
      bias: the reductions that are gradients of the bias.
    """

    dq: Scored | None
    dk: Scored | None
    dp: ir.Operation
    value_side: int
    axes: Groups
    empty_rows: EmptyRows | None
    bias: tuple[Replaced, ...]

    @property
    def values(self) -> Labelled:
        """Returns the values that the gradient reads."""
        return self._operand(self.value_side)

    @property
    def output(self) -> Labelled:
        """Returns the gradient of the output."""
        return self._operand(1 - self.value_side)

    def _operand(self, side: int) -> Labelled:
        return Labelled(self.dp.operands[side], operand_labels(self.dp, side, self.axes, VALUE))


@dataclass(frozen=True)
class Products:
    """The products of a gradient: those of the scores, or of the values, or of both.

    Attributes:
      forward: the attention.
      scores: the gradient of the scores; None where nothing reads it.
      dv: the product of the values' gradient, by the operand that is the weights; None where
        nothing reads it.
    """

    forward: ForwardRead
    scores: GradientOfScores | None
    dv: Scored | None

    @property
    def dq(self) -> Scored | None:
        """Returns the product of the queries' gradient, if there is one."""
        return None if self.scores is None else self.scores.dq

    @property
    def dk(self) -> Scored | None:
        """Returns the product of the keys' gradient, if there is one."""
        return None if self.scores is None else self.scores.dk

    @property
    def bias(self) -> tuple[Replaced, ...]:
        """Returns the reductions that are gradients of the bias."""
        return () if self.scores is None else self.scores.bias

    @property
    def empty_rows(self) -> EmptyRows | None:
        """Returns what the gradients say of rows without a key; None where nothing."""
        return None if self.scores is None else self.scores.empty_rows

    @property
    def scored(self) -> tuple[Scored, ...]:
        """Returns the products that something reads."""
        return tuple(each for each in (self.dq, self.dk, self.dv) if each is not None)

    @property
    def queries(self) -> Labelled:
        """Returns the queries: those that the gradient reads, if it does."""
        return self.forward.queries if self.dk is None else other_operand(self.dk, HEAD)

    @property
    def keys(self) -> Labelled:
        """Returns the keys: those that the gradient reads, if it does."""
        return self.forward.keys if self.dq is None else other_operand(self.dq, HEAD)

    @property
    def values(self) -> Labelled:
        """Returns the values: those that the gradient reads, if it does."""
        return self.forward.values if self.scores is None else self.scores.values

    @property
    def output(self) -> Labelled:
        """Returns the gradient of the output."""
        if self.scores is not None:
            return self.scores.output
        assert self.dv is not None
        return other_operand(self.dv, VALUE)


def other_operand(scored: Scored, kind: str) -> Labelled:
    """Returns the operand besides that of the scores, whose own axes are of a kind."""
    return Labelled(scored.other, scored.other_labels(kind))
