"""Terms of sums that are matrix products, and their computation in a wider type.

A product accumulates in float32 and rounds its sum to the type of its result. Where it is added to
a wider value it need not round: its sum enters the other sum as it is. Operations in between, a
transpose, a reshape or a conversion, change no element and are done in the wider type.

The table of operations (`OpFacts.widens`) says which products allow that.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import walk
from .erase import erase
from .ops import facts_of
from .types import element_bits, float_format
from .values import defining_op, element_of

_CONVERT = "stablehlo.convert"
_SAME_ELEMENTS = frozenset({_CONVERT, "stablehlo.reshape", "stablehlo.transpose"})
_ALGORITHM = "algorithm"
_SUM_BITS = 32
"""The types that a product can round its sum to: it accumulates in float32. A float64 result would
need a product in float64, which is other work."""


@dataclass(frozen=True)
class ProductTerm:
    """A term that is a product.

    Attributes:
      between: the operations from the product to the term, in order.
      wider: the element type that the product will have.
    """

    product: ir.Operation
    between: tuple[ir.Operation, ...]
    wider: ir.Type

    def widen(self) -> None:
        """Retypes the product and the operations after it; conversions are erased."""
        for op in (self.product, *self.between):
            [result] = op.results
            if op.name == _CONVERT:
                result.replace_all_uses_with(op.operands[0])
                erase(op)
            else:
                shape = ir.RankedTensorType(result.type).shape
                result.set_type(ir.RankedTensorType.get(shape, self.wider))


def product_terms(sum_: ir.Operation, *, moved: bool = True) -> tuple[ProductTerm, ...]:
    """Returns the terms of an addition that are products which can be computed in its type.

    Without ``moved`` only those with nothing but conversions between product and addition.
    """
    wider = element_of(sum_.results[0])
    terms = (_product_term(operand, wider, sum_.block) for operand in sum_.operands)
    found = tuple(term for term in terms if term is not None)
    if moved:
        return found
    return tuple(term for term in found if all(op.name == _CONVERT for op in term.between))


def _product_term(value: ir.Value, wider: ir.Type, block: ir.Block) -> ProductTerm | None:
    """Returns the product that a value is, where it can be made in a wider element type; else None.

    Nothing else may read the product or the operations in between. All are in the block of the
    addition: a product before a loop is no term that the loop computes.
    """
    found = product_behind(value)
    if found is None:
        return None
    product, between = found
    made = (product, *between)
    if not all(op.block == block and _has_one_reader(op.results[0]) for op in made):
        return None
    elements = [element_of(op.results[0]) for op in made]
    # A conversion to a type that is no wider rounds, as the program specifies.
    if not all(after == before or _is_wider(after, before) for before, after in pairwise(elements)):
        return None
    return ProductTerm(product, between, wider) if _can_make(product, wider) else None


def product_behind(value: ir.Value) -> tuple[ir.Operation, tuple[ir.Operation, ...]] | None:
    """Returns the product whose elements a value has, and the operations in between, in order."""
    between: list[ir.Operation] = []
    while (op := defining_op(value)) is not None:
        if facts_of(op.name).widens:
            return op, tuple(reversed(between))
        if op.name not in _SAME_ELEMENTS:
            return None
        between.append(op)
        value = op.operands[0]
    return None


def _can_make(product: ir.Operation, wider: ir.Type) -> bool:
    """Whether a product has its sum in a type that is wider than its result."""
    left, right, *_ = product.operands
    if not all(isinstance(element_of(operand), ir.FloatType) for operand in (left, right)):
        return False
    sum_format = float_format(wider)
    if sum_format is None or sum_format.bits > _SUM_BITS:
        return False
    if not _is_wider(wider, element_of(product.results[0])):
        return False
    if not ir.RankedTensorType(product.results[0].type).has_static_shape:
        return False
    if _ALGORITHM not in walk.attribute_names(product):
        return True
    # An algorithm states its accumulation type: its sum is no wider.
    summed = stablehlo.DotAlgorithm(product.attributes[_ALGORITHM]).accumulation_type
    return summed == wider or _is_wider(summed, wider)


def _is_wider(wide: ir.Type, narrow: ir.Type) -> bool:
    if not (isinstance(wide, ir.FloatType) and isinstance(narrow, ir.FloatType)):
        return False
    return (element_bits(wide) or 0) > (element_bits(narrow) or 0)


def _has_one_reader(value: ir.Value) -> bool:
    uses = iter(value.uses)
    return next(uses, None) is not None and next(uses, None) is None
