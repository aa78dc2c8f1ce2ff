"""Describes a ragged product: two operands, group sizes, and which axes are multiplied how."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.products import ProductAxes
from ..ir.types import element_bits
from ..ir.values import defining_op, element_of, shape_of


class RaggedMode(enum.StrEnum):
    """The part of the ragged axis in the product."""

    ROWS = "rows"
    """Each row is multiplied by the matrix of its group: a layer's result, or its data gradient."""
    SUM = "sum"
    """The rows of each group are summed over, for a result of one matrix a group: the gradient of
    the weights."""


@dataclass(frozen=True)
class Factor:
    """An operand of the product.

    Attributes:
      value: the value that is read; slices of it are converted to ``element``.
      element: the type of the elements that are multiplied.
      contracting, batching: those axes of ``value``, in the order of the other operand's.
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
        return shape_of(self.value)

    @property
    def read_bytes(self) -> float:
        """Returns the bytes of the whole value."""
        return packed_bytes(self.shape, element_of(self.value))


@dataclass(frozen=True)
class Prefix:
    """The axes along which each place has sizes of groups of its own, in the order of the sizes.

    They are the axes of the batch and, after them, those before the left operand's rows of the same
    kind: free ones or, where rows are summed over, contracted ones. So ``right`` and ``result`` may
    lack some of the last ones.

    Attributes:
      left, right, result: those axes of the operands and of the result.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]


@dataclass(frozen=True)
class RaggedProduct:
    """A product whose rows are in groups, one after the other along an axis.

    Attributes:
      op: the operation that makes it, as its one result.
      left: the operand of rows.
      right: one matrix a group (``RaggedMode.ROWS``), or rows too (``RaggedMode.SUM``).
      sizes: how many rows each group has, along the last axis. Remaining rows belong to no group.
        Axes before it are those of ``prefix``: each of their places has sizes of its own.
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
        return shape_of(self.sizes)[-1]

    @property
    def places(self) -> list[int]:
        """Returns the axes of the sizes before that of the groups: none if all rows share sizes."""
        return shape_of(self.sizes)[:-1]

    @property
    def prefix(self) -> Prefix:
        """Returns the axes that the sizes have before that of the groups."""
        batch = len(self.left.batching)
        if not self.places:
            return Prefix((), (), ())
        if self.mode is RaggedMode.SUM:
            assert self.left.ragged is not None
            outer = self.left.contracting.index(self.left.ragged)
            return Prefix(
                self.left.batching + self.left.contracting[:outer],
                self.right.batching + self.right.contracting[:outer],
                tuple(range(1, batch + 1)),
            )
        outer = self.result_axis - batch
        return Prefix(
            self.left.batching + tuple(self._free_axes[:outer]),
            self.right.batching,
            tuple(range(self.result_axis)),
        )

    @property
    def matrices(self) -> int:
        """Returns how many parts belong to one group: of ``right``, or of the result."""
        return self.groups * math.prod(self.places[: len(self.left.batching)])

    @property
    def result(self) -> ir.RankedTensorType:
        return ir.RankedTensorType(self.op.results[0].type)

    @property
    def result_axis(self) -> int:
        """Returns the axis of the result's rows; where rows are summed, that of the groups."""
        if self.mode is RaggedMode.SUM:
            return 0
        assert self.left.ragged is not None
        return len(self.left.batching) + self._free_axes.index(self.left.ragged)

    @property
    def _free_axes(self) -> list[int]:
        """Returns the axes of the left operand that the result has after those of the batch."""
        used = {*self.left.batching, *self.left.contracting}
        return [axis for axis in range(len(self.left.shape)) if axis not in used]

    @property
    def result_bytes(self) -> float:
        return packed_bytes(shape_of(self.result), self.result.element_type)

    @property
    def flops(self) -> float:
        """Returns the FLOPs that the product needs: each row meets one group's matrix."""
        out = math.prod(self.result.shape)
        contracted = math.prod(self.left.shape[axis] for axis in self.left.contracting)
        return 2.0 * out * contracted / (self.groups if self.mode is RaggedMode.SUM else 1)


def packed_bytes(shape: list[int], element: ir.Type) -> float:
    """Returns the bytes of so many elements, packed where they are of less than a byte."""
    return math.prod(shape) * (element_bits(element) or 0) / 8


def of_instruction(op: ir.Operation) -> RaggedProduct:
    """Reads `chlo.ragged_dot` as a product. Raises NotPossibleError."""
    axes = ProductAxes.of(op)
    left, right, sizes = op.operands
    [ragged] = axes.ragged
    contracting, others = axes.left.contracted, axes.right.contracted
    if ragged in axes.left.batch:
        raise NotPossibleError("its ragged axis is a batch axis, so nothing is multiplied twice")
    group: int | None = None
    rows: int | None = None
    if ragged in contracting:
        rows = others[contracting.index(ragged)]
    else:
        [group] = axes.groups
    return checked(
        RaggedProduct(
            op,
            factor(left, contracting, axes.left.batch, ragged),
            factor(right, others, axes.right.batch, rows, group),
            sizes_of_all(sizes),
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
    """Returns an operand, before its conversion if it is one: each tile is converted by itself."""
    element = element_of(value)
    op = defining_op(value)
    if op is not None and op.name == "stablehlo.convert":
        value = op.operands[0]
    return Factor(value, element, contracting, batching, ragged, group)


def sizes_of_all(sizes: ir.Value) -> ir.Value:
    """Returns the vector of sizes if all places have the same ones, as JAX writes for CPUs."""
    op = defining_op(sizes)
    type_ = ir.RankedTensorType(sizes.type)
    if op is None or op.name != "stablehlo.broadcast_in_dim" or type_.rank == 1:
        return sizes
    one = ir.RankedTensorType(op.operands[0].type)
    along = walk.integers(op, "broadcast_dimensions")
    repeated = along == [type_.rank - 1] and list(one.shape) == [type_.shape[-1]]
    return op.operands[0] if repeated else sizes


def checked(product: RaggedProduct) -> RaggedProduct:
    """Returns the product, if its shapes allow tiles. Raises NotPossibleError."""
    types = [product.left.value.type, product.right.value.type, product.sizes.type, product.result]
    if not all(ir.RankedTensorType(type_).has_static_shape for type_ in types):
        raise NotPossibleError("a dimension of it is dynamic")
    elements = [product.left.element, product.right.element, product.result.element_type]
    if any(element_bits(element) is None for element in elements):
        raise NotPossibleError("its elements are quantized")
    if 0 in (product.rows, product.groups, *product.result.shape, *product.left.shape):
        raise NotPossibleError("it is empty")
    if math.prod(product.places) * product.rows * (product.groups + 1) >= 2**31:
        raise NotPossibleError("its rows cannot be counted in 32 bits")
    return product


_PRECISIONS = ("DEFAULT", "HIGHEST", "HIGH")


def _precision(op: ir.Operation) -> ir.Attribute | None:
    """Returns CHLO's own attribute of precisions as StableHLO's."""
    if "precision_config" not in op.attributes:
        return None
    names = [
        next(name for name in _PRECISIONS if name in str(each))
        for each in ir.ArrayAttr(op.attributes["precision_config"])
    ]
    attributes = [stablehlo.PrecisionAttr.get(name, context=op.context) for name in names]
    return ir.ArrayAttr.get(attributes, context=op.context)
