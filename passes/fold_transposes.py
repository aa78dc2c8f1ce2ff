"""Read and write matrices of products as they lie, instead of transposing them.

``x @ w.T`` is a transpose of the weights and a product; its gradient is a product and a transpose.
XLA fuses both into one kernel, but a loop around the product would carry the transposed copy.

Before::

    %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<9x4xf32>) -> tensor<4x9xf32>
    %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0]

After::

    %1 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]

Products with attributes besides dimension numbers and precision stay. The numbers are the same.

Source: XLA's ``TransposeFolding``, on the HLO.
"""

# An operand is read untransposed where the axes that the product keeps stay in their order; a
# result is written transposed where that only swaps the axes of both operands.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .analysis.purity import erase_unread
from .drop_constraints import DropConstraints
from .framework.base import Pass, PlanBase
from .framework.tables import Fact
from .framework.target import Target
from .framework.text import pluralize
from .ir import walk
from .ir.build import typed
from .ir.clone import rebuilt
from .ir.products import ProductAxes
from .ir.values import defining_op, element_of, shape_of

_TRANSPOSE, _CONVERT, _PRODUCT = "stablehlo.transpose", "stablehlo.convert", "stablehlo.dot_general"
_NUMBERS, _PRECISION = "dot_dimension_numbers", "precision_config"

Axes = tuple[int, ...]


@dataclass(frozen=True)
class _Transposed:
    """A value as a transpose of its source: axis i of it is axis ``axes[i]`` of the source."""

    source: ir.Value
    axes: Axes
    converts: tuple[ir.Operation, ...] = ()
    """The conversions of the value, the first one first."""

    @property
    def is_same(self) -> bool:
        return self.axes == tuple(range(len(self.axes)))


@dataclass(frozen=True)
class FoldTransposesPlan(PlanBase):
    """The operands, results and transposes to replace.

    Attributes:
      operands: products, each with the number of an operand and the transpose that it is.
      results: transposes, each with the product whose operands are swapped instead, and with the
        conversions of the result.
      merged: transposes of transposes, each with the single transpose, or the value, that it
        equals.
    """

    operands: tuple[tuple[ir.Operation, int, _Transposed], ...]
    results: tuple[tuple[ir.Operation, ir.Operation, tuple[ir.Operation, ...]], ...]
    merged: tuple[tuple[ir.Operation, _Transposed], ...]

    @property
    def empty(self) -> bool:
        return not (self.operands or self.results or self.merged)

    def summary(self) -> str:
        operands = pluralize(len(self.operands), "operand")
        results = pluralize(len(self.results), "result")
        merged = pluralize(len(self.merged), "transpose")
        return f"{operands} and {results} of products not transposed, {merged} merged"

    def facts(self) -> tuple[Fact, ...]:
        return (
            Fact("operands not transposed", len(self.operands)),
            Fact("results not transposed", len(self.results)),
            Fact("transposes merged", len(self.merged)),
        )


@dataclass(frozen=True)
class FoldTransposes(Pass):
    """Read and write matrices of products as they lie."""

    name: ClassVar[str] = "fold-transposes"
    summary: ClassVar[str] = "read and write matrices of products as they lie"
    example: ClassVar[str] = "fold-transposes"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints,)
    preparation: ClassVar[bool] = True

    def plan(self, module: ir.Module, target: Target) -> FoldTransposesPlan:
        operands: list[tuple[ir.Operation, int, _Transposed]] = []
        results: list[tuple[ir.Operation, ir.Operation, tuple[ir.Operation, ...]]] = []
        merged: list[tuple[ir.Operation, _Transposed]] = []
        for op in walk.operations(module.operation):
            if op.name == _PRODUCT and _is_plain(op, _NUMBERS, _PRECISION):
                for number in (0, 1):
                    found = _operand(op, number)
                    if found is not None:
                        operands.append((op, number, found))
            elif op.name == _TRANSPOSE and _is_plain(op, "permutation"):
                found = _source(op.results[0], through_converts=False)
                product = _product_of(op)
                if found.is_same or found.source != op.operands[0]:
                    merged.append((op, found))
                elif product is not None:
                    results.append((op, *product))
        return FoldTransposesPlan(tuple(operands), tuple(results), tuple(merged))

    def apply(self, plan: FoldTransposesPlan) -> None:
        freed: list[ir.Value] = []
        """Results that may have no reader any more."""
        for op, number, found in plan.operands:
            freed.append(op.operands[number])
            _read(op, number, found)
        for transpose, product, converts in plan.results:
            freed.append(transpose.results[0])
            _write_swapped(transpose, product, converts)
        for transpose, found in plan.merged:
            freed += [transpose.results[0], transpose.operands[0]]
            _merge(transpose, found)
        _erase_unused(freed)


def _is_plain(op: ir.Operation, *known: str) -> bool:
    """Whether an operation has no attributes but the known ones."""
    return set(walk.attribute_names(op)) <= set(known)


def _source(value: ir.Value, *, through_converts: bool) -> _Transposed:
    """Returns the source of a value through all transposes before it."""
    axes: Axes = tuple(range(ir.RankedTensorType(value.type).rank))
    converts: list[ir.Operation] = []
    found = _Transposed(value, axes)
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name == _TRANSPOSE and _is_plain(op, "permutation"):
            permutation = walk.integers(op, "permutation")
            axes = tuple(permutation[axis] for axis in axes)
            value = op.operands[0]
            found = _Transposed(value, axes, tuple(reversed(converts)))
        elif through_converts and op.name == _CONVERT and _is_plain(op):
            converts.append(op)
            value = op.operands[0]
        else:
            break
    return found


def _operand(op: ir.Operation, number: int) -> _Transposed | None:
    """Returns the transpose through which an operand of a product is read; None where it stays."""
    value = op.operands[number]
    found = _source(value, through_converts=True)
    if found.source == value:
        return None
    axes = ProductAxes.of(op)
    kept = [found.axes[axis] for axis in (axes.right if number else axes.left).free]
    return found if kept == sorted(kept) else None


def _product_of(transpose: ir.Operation) -> tuple[ir.Operation, tuple[ir.Operation, ...]] | None:
    """Returns the product that is transposed, if it has no other reader and only swaps operands."""
    if all(use.owner.operation.name == _TRANSPOSE for use in transpose.results[0].uses):
        return None  # merged, or unused
    value = transpose.operands[0]
    converts: list[ir.Operation] = []
    while not isinstance(value.owner, ir.Block) and len(list(value.uses)) == 1:
        op = value.owner.operation
        if op.name == _PRODUCT and _is_plain(op, _NUMBERS, _PRECISION):
            swapped = walk.integers(transpose, "permutation") == _swapped(op)
            return (op, tuple(reversed(converts))) if swapped else None
        if op.name != _CONVERT or not _is_plain(op):
            return None
        converts.append(op)
        value = op.operands[0]
    return None


def _swapped(product: ir.Operation) -> list[int]:
    """Returns the permutation of a product's axes that equals swapping its operands."""
    axes = ProductAxes.of(product).left
    rank = len(shape_of(product.results[0]))
    first, right = len(axes.batch), len(axes.batch) + len(axes.free)
    return [*range(first), *range(right, rank), *range(first, right)]


def _read(op: ir.Operation, number: int, found: _Transposed) -> None:
    """Makes a product read an operand from the transpose's source."""
    op.operands[number] = _converted(found.source, found.converts, op)
    axes = ProductAxes.of(op)
    if number:
        axes = replace(axes, right=axes.right.renamed(found.axes))
    else:
        axes = replace(axes, left=axes.left.renamed(found.axes))
    op.attributes[_NUMBERS] = axes.numbers


def _write_swapped(
    transpose: ir.Operation, product: ir.Operation, converts: Sequence[ir.Operation]
) -> None:
    """Replaces a transpose by the product with swapped operands, and its conversions."""
    axes = ProductAxes.of(product)
    type_ = typed(product.results[0], shape_of(transpose.results[0]))
    numbers: dict[str, ir.Attribute] = {_NUMBERS: ProductAxes(axes.right, axes.left).numbers}
    swapped = rebuilt(product, list(product.operands)[::-1], [type_], numbers)
    if _PRECISION in product.attributes:
        both = list(ir.ArrayAttr(product.attributes[_PRECISION]))
        swapped.attributes[_PRECISION] = ir.ArrayAttr.get(both[::-1])
    made = _converted(swapped.results[0], converts, transpose)
    transpose.results[0].replace_all_uses_with(made)


def _converted(value: ir.Value, converts: Sequence[ir.Operation], before: ir.Operation) -> ir.Value:
    """Returns a value converted as another one was."""
    for convert in converts:
        type_ = typed(value, element=element_of(convert.results[0]))
        with convert.location, ir.InsertionPoint(before):
            value = stablehlo.convert(type_, value)
    return value


def _merge(transpose: ir.Operation, found: _Transposed) -> None:
    if found.is_same:
        transpose.results[0].replace_all_uses_with(found.source)
        return
    transpose.operands[0] = found.source
    transpose.attributes["permutation"] = ir.DenseI64ArrayAttr.get(list(found.axes))


def _erase_unused(values: Sequence[ir.Value]) -> None:
    """Erases transposes, conversions and products from values back, where they have no readers."""
    makers = (defining_op(value) for value in values)
    erase_unread(
        (maker for maker in makers if maker is not None),
        lambda op: op.name in (_TRANSPOSE, _CONVERT, _PRODUCT),
    )
