"""The product whose result is summed over devices, with the elementwise work between."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.axis_cuts import cut_operand, cut_result
from ..framework.errors import NotPossibleError
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.values import defining_op, shape_of
from .readers import is_product, named

_MOVED = frozenset({"stablehlo.reshape", "stablehlo.transpose"})


@dataclass(frozen=True)
class Terms:
    """What each device adds to a sum.

    Attributes:
      product: a matrix product that nothing else reads.
      side: which of its operands has the axis that is scattered.
      operand_axis, product_axis: that axis of the operand, and of the product's result.
      work: elementwise operations and movements behind the product, in their order.
      axis: that axis of what is summed.
    """

    product: ir.Operation
    side: int
    operand_axis: int
    product_axis: int
    work: tuple[ir.Operation, ...]
    axis: int


def terms_of(collective: ir.Operation, axis: int, devices: int, taken: Set[ir.Value]) -> Terms:
    """The terms of a sum over devices, a part of which along an axis goes to each of them.

    Args:
      collective: the sum.
      axis: of what is summed.
      devices: of a group.
      taken: results of products that other exchanges are beside.

    Raises NotPossibleError where no single product makes them a part at a time.
    """
    value, along = collective.operands[0], axis
    if shape_of(value)[axis] % devices:
        raise NotPossibleError(f"{devices} devices do not divide its axis {axis}")
    work: list[ir.Operation] = []
    while True:
        maker = defining_op(value)
        if maker is None or maker.block != collective.block:
            raise NotPossibleError("no product makes it in the same code")
        if len(list(value.uses)) > 1:
            raise NotPossibleError(f"others read what {named(maker)} makes, too")
        if is_product(maker):
            break
        cut = cut_result(maker, along) if _is_work(maker) else None
        if cut is None:
            raise NotPossibleError(f"{named(maker)} makes it, which is no product")
        read = zip(maker.operands, cut.operands, strict=True)
        made = [(each, place) for each, place in read if place is not None and _is_made(each)]
        if len(made) != 1:
            raise NotPossibleError(f"{named(maker)} makes it, and no single product that")
        work.insert(0, maker)
        value, along = made[0]
    cut = cut_result(maker, along)
    if cut is None or cut.operands.count(None) != 1:
        raise NotPossibleError(f"its axis is a batch of {named(maker)}")
    if maker.results[0] in taken:
        raise NotPossibleError(f"{named(maker)} is beside another exchange")
    side = cut.operands.index(None) ^ 1
    operand_axis = cut.operands[side]
    assert operand_axis is not None
    # A product that the other operand is cut with as well has no such axis.
    assert cut_operand(maker, side, operand_axis) == cut
    return Terms(maker, side, operand_axis, along, tuple(work), axis)


def _is_work(op: ir.Operation) -> bool:
    return facts_of(op.name).category is Category.ELEMENTWISE or op.name in _MOVED


def _is_made(value: ir.Value) -> bool:
    """Whether a value is a product's result, or work on one, that nothing else reads."""
    maker = defining_op(value)
    if maker is None or len(list(value.uses)) != 1:
        return False
    return is_product(maker) or (_is_work(maker) and any(map(_is_made, maker.operands)))
