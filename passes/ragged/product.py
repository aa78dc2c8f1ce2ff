"""What a ragged product is: two operands, group sizes, and which axes are multiplied how."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, stablehlo

from hloom.passes.analysis.loops.counted import defining_op
from hloom.passes.ir.types import element_bits

RAGGED_DOT = "chlo.ragged_dot"


class NotRewrittenError(Exception):
    """A ragged product that stays as it is; the text says why, in half a sentence."""


class RaggedMode(enum.StrEnum):
    """Which part the ragged axis has in the product."""

    ROWS = "rows"
    """Each row is multiplied by the matrix of its group: a layer's result, or its data gradient."""
    SUM = "sum"
    """The rows of each group are summed over, for a result of one matrix a group: the gradient of
    the weights."""


@dataclass(frozen=True)
class Factor:
    """An operand of the product.

    Attributes:
      value: what is read; slices of it are converted to ``element``.
      element: the type of the elements that are multiplied.
      contracting, batching: the axes of ``value`` that are, in the order of the other operand's.
      ragged: the axis of the rows that are in groups; None in an operand with one part a group.
      group: the axis of the groups; None in an operand of rows.
    """

    value: ir.Value
    element: ir.Type
    contracting: tuple[int, ...]
    batching: tuple[int, ...]
    ragged: int | None
    group: int | None = None

    @property
    def shape(self) -> list[int]:
        return list(ir.RankedTensorType(self.value.type).shape)

    @property
    def read_bytes(self) -> float:
        """Of the whole value."""
        return _bytes(self.shape, ir.RankedTensorType(self.value.type).element_type)


@dataclass(frozen=True)
class RaggedProduct:
    """A product whose rows are in groups, one after the other along an axis.

    Attributes:
      op: the operation that makes it, as its one result.
      left: its rows.
      right: one matrix a group (``RaggedMode.ROWS``), or rows too (``RaggedMode.SUM``).
      sizes: how many rows each group has, of rank 1. What they leave belongs to no group.
      precision: `precision_config` for the products of tiles, if the program has any.
    """

    op: ir.Operation
    left: Factor
    right: Factor
    sizes: ir.Value
    precision: ir.Attribute | None

    @property
    def mode(self) -> RaggedMode:
        return RaggedMode.SUM if self.right.group is None else RaggedMode.ROWS

    @property
    def rows(self) -> int:
        assert self.left.ragged is not None
        return self.left.shape[self.left.ragged]

    @property
    def groups(self) -> int:
        return int(ir.RankedTensorType(self.sizes.type).shape[0])

    @property
    def result(self) -> ir.RankedTensorType:
        return ir.RankedTensorType(self.op.results[0].type)

    @property
    def result_axis(self) -> int:
        """The axis of the result's rows; where rows are summed, that of the groups."""
        if self.mode is RaggedMode.SUM:
            return 0
        used = {*self.left.batching, *self.left.contracting}
        free = [axis for axis in range(len(self.left.shape)) if axis not in used]
        assert self.left.ragged is not None
        return len(self.left.batching) + free.index(self.left.ragged)

    @property
    def result_bytes(self) -> float:
        return _bytes(list(self.result.shape), self.result.element_type)

    @property
    def flops(self) -> float:
        """What the product needs: each row meets the matrix of one group."""
        out = math.prod(self.result.shape)
        contracted = math.prod(self.left.shape[axis] for axis in self.left.contracting)
        return 2.0 * out * contracted / (self.groups if self.mode is RaggedMode.SUM else 1)


def _bytes(shape: list[int], element: ir.Type) -> float:
    return math.prod(shape) * (element_bits(element) or 0) / 8


def of_instruction(op: ir.Operation) -> RaggedProduct:
    """The product that `chlo.ragged_dot` is. Raises NotRewrittenError."""
    numbers = chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])
    left, right, sizes = op.operands
    [ragged] = numbers.lhs_ragged_dimensions
    contracting = tuple(numbers.lhs_contracting_dimensions)
    others = tuple(numbers.rhs_contracting_dimensions)
    if ragged in numbers.lhs_batching_dimensions:
        raise NotRewrittenError("its ragged axis is a batch axis, so nothing is multiplied twice")
    group: int | None = None
    rows: int | None = None
    if ragged in contracting:
        rows = others[contracting.index(ragged)]
    else:
        [group] = numbers.rhs_group_dimensions
    return checked(
        RaggedProduct(
            op,
            factor(left, contracting, tuple(numbers.lhs_batching_dimensions), ragged),
            factor(right, others, tuple(numbers.rhs_batching_dimensions), rows, group),
            sizes,
            _precision(op),
        )
    )


def factor(
    value: ir.Value,
    contracting: tuple[int, ...],
    batching: tuple[int, ...],
    ragged: int | None,
    group: int | None = None,
) -> Factor:
    """An operand; where it is a conversion, what is converted: tiles are, each by itself."""
    element = ir.RankedTensorType(value.type).element_type
    op = defining_op(value)
    if op is not None and op.name == "stablehlo.convert":
        value = op.operands[0]
    return Factor(value, element, contracting, batching, ragged, group)


def checked(product: RaggedProduct) -> RaggedProduct:
    """The product, if its shapes allow tiles. Raises NotRewrittenError."""
    types = [product.left.value.type, product.right.value.type, product.sizes.type, product.result]
    if not all(ir.RankedTensorType(type_).has_static_shape for type_ in types):
        raise NotRewrittenError("a dimension of it is dynamic")
    if len(ir.RankedTensorType(product.sizes.type).shape) != 1:
        raise NotRewrittenError("each element of its batch has groups of its own")
    elements = [product.left.element, product.right.element, product.result.element_type]
    if any(element_bits(element) is None for element in elements):
        raise NotRewrittenError("its elements are quantized")
    if 0 in (product.rows, product.groups, *product.result.shape, *product.left.shape):
        raise NotRewrittenError("it is empty")
    if product.rows * (product.groups + 1) >= 2**31:
        raise NotRewrittenError("its rows cannot be counted in 32 bits")
    return product


_PRECISIONS = ("DEFAULT", "HIGHEST", "HIGH")


def _precision(op: ir.Operation) -> ir.Attribute | None:
    """CHLO's own attribute of precisions as StableHLO's."""
    if "precision_config" not in op.attributes:
        return None
    names = [
        next(name for name in _PRECISIONS if name in str(each))
        for each in ir.ArrayAttr(op.attributes["precision_config"])
    ]
    attributes = [stablehlo.PrecisionAttr.get(name, context=op.context) for name in names]
    return ir.ArrayAttr.get(attributes, context=op.context)
