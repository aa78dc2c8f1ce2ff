"""Accumulators: what they start with, and how terms are combined in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.signatures.signature import Combine
from ..ir.build import zeros

COMBINES: Mapping[Combine, Callable[..., ir.Value]] = {
    Combine.SUM: stablehlo.add,
    Combine.MAX: stablehlo.maximum,
    Combine.MIN: stablehlo.minimum,
}


def has_identity(element: ir.Type, combine: Combine) -> bool:
    """Whether an element changes nothing when it is combined with any other."""
    if combine is Combine.SUM:
        return True
    return isinstance(element, ir.IntegerType) or _infinity(element, combine) is not None


def identity(type_: ir.RankedTensorType, combine: Combine) -> ir.Value:
    """A tensor of elements that change nothing when they are combined with others."""
    if combine is Combine.SUM:
        return zeros(type_)
    element = type_.element_type
    attribute = _infinity(element, combine)
    if attribute is None:
        attribute = _integer(ir.IntegerType(element), combine)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, attribute))


def _infinity(element: ir.Type, combine: Combine) -> ir.Attribute | None:
    """Infinity; None for types without one."""
    if not isinstance(element, ir.FloatType):
        return None
    wanted = -math.inf if combine is Combine.MAX else math.inf
    attribute = ir.FloatAttr.get(element, wanted, ir.Location.unknown(element.context))
    return attribute if attribute.value == wanted else None


def _integer(element: ir.IntegerType, combine: Combine) -> ir.Attribute:
    """The least or the greatest integer of a type; of booleans false or true."""
    width = int(element.width)
    if width == 1 or element.is_unsigned:
        number = 0 if combine is Combine.MAX else 2**width - 1
    else:
        number = -(2 ** (width - 1)) if combine is Combine.MAX else 2 ** (width - 1) - 1
    if width == 1:
        return ir.BoolAttr.get(bool(number))
    return ir.IntegerAttr.get(element, number)
