"""Matrix products: which axes of the operands are batches, contracted, or free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, stablehlo

Axes = tuple[int, ...]

RAGGED_DOT = "chlo.ragged_dot"


@dataclass(frozen=True, slots=True)
class OperandAxes:
    """The axes of one operand of a product.

    Attributes:
      rank: their number.
      batch: the axes that are in the other operand and in the result.
      contracted: the axes that are in the other operand alone.
    """

    rank: int
    batch: Axes
    contracted: Axes

    @property
    def free(self) -> Axes:
        """Returns the axes that are in the result and not in the other operand, in order."""
        taken = {*self.batch, *self.contracted}
        return tuple(axis for axis in range(self.rank) if axis not in taken)

    def renamed(self, axes: Sequence[int]) -> OperandAxes:
        """Returns the axes of the value that the operand transposes, by the order ``axes``."""
        batch, contracted = (
            tuple(axes[axis] for axis in each) for each in (self.batch, self.contracted)
        )
        return OperandAxes(self.rank, batch, contracted)


@dataclass(frozen=True, slots=True)
class ProductAxes:
    """The axes of a product: a result has the batches, the free axes of left, then right.

    Attributes:
      left: those of the left operand.
      right: those of the right one. Batches and contracted axes are in the left one's order.
      ragged: for a ragged product the axis of the left operand that is divided into groups.
      groups: for a ragged product the axis of the right operand that has a matrix for each group,
        if any.
    """

    left: OperandAxes
    right: OperandAxes
    ragged: Axes = ()
    groups: Axes = ()

    @classmethod
    def of(cls, op: ir.Operation) -> ProductAxes:
        """Returns the axes of a ``dot`` or ``dot_general`` of StableHLO, or ``chlo.ragged_dot``."""
        left, right = (ir.ShapedType(operand.type).rank for operand in [*op.operands][:2])
        if op.name == "stablehlo.dot":
            return cls(OperandAxes(left, (), (left - 1,)), OperandAxes(right, (), (0,)))
        numbers: stablehlo.DotDimensionNumbers | chlo.RaggedDotDimensionNumbers
        ragged: Axes = ()
        groups: Axes = ()
        if op.name == RAGGED_DOT:
            numbers = chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])
            ragged = tuple(numbers.lhs_ragged_dimensions)
            groups = tuple(numbers.rhs_group_dimensions)
        else:
            numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        batch = numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions
        summed = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
        return cls(
            OperandAxes(left, tuple(batch[0]), tuple(summed[0])),
            OperandAxes(right, tuple(batch[1]), tuple(summed[1])),
            ragged,
            groups,
        )

    @property
    def numbers(self) -> stablehlo.DotDimensionNumbers:
        """Returns the attribute that says so of a ``stablehlo.dot_general``."""
        return stablehlo.DotDimensionNumbers.get(
            lhs_batching_dimensions=self.left.batch,
            rhs_batching_dimensions=self.right.batch,
            lhs_contracting_dimensions=self.left.contracted,
            rhs_contracting_dimensions=self.right.contracted,
        )

    def places(self, operand: int) -> tuple[int | None, ...]:
        """Returns by axis of an operand the axis of the result; None for one that is summed."""
        mine = self.right if operand else self.left
        start = len(self.left.batch) + (len(self.left.free) if operand else 0)
        found = {axis: number for number, axis in enumerate(mine.batch)}
        found |= {axis: number for number, axis in enumerate(mine.free, start)}
        return tuple(found.get(axis) for axis in range(mine.rank))

    @property
    def shared(self) -> Iterable[tuple[int, int]]:
        """Returns the pairs of axes of both operands that are one dimension, batches first."""
        left, right = self.left, self.right
        return zip(left.batch + left.contracted, right.batch + right.contracted, strict=True)


def sums_nothing(op: ir.Operation) -> bool:
    """Whether a product sums over no axis, or over axes of one element: it multiplies broadcasts,
    and XLA makes a multiplication of it (HandleDot, algebraic_simplifier.cc)."""
    shape = ir.ShapedType(op.operands[0].type).shape
    return all(shape[axis] == 1 for axis in ProductAxes.of(op).left.contracted)
