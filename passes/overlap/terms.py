"""Finds the products whose results are summed over devices, and the elementwise work after them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Set
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.axis_cuts import AxisCut, cut_result
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.locations import named
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.values import defining_op, shape_of
from .readers import is_product

_MOVED = frozenset({"stablehlo.reshape", "stablehlo.transpose"})


@dataclass(frozen=True)
class CutOperation:
    """A product, or work after products, that is done on a part.

    Attributes:
      op: the operation.
      cut: its axes that are cut.
    """

    op: ir.Operation
    cut: AxisCut

    @property
    def axis(self) -> int:
        """Returns the axis of its result."""
        assert self.cut.result is not None
        return self.cut.result


@dataclass(frozen=True)
class Terms:
    """The terms that each device adds to a sum.

    Attributes:
      products: matrix products with no other readers, each cut along a free axis.
      work: elementwise operations and movements after them, in the order of the text.
      axis: the axis of the sum along which each device has a part in the end.
    """

    products: tuple[CutOperation, ...]
    work: tuple[CutOperation, ...]
    axis: int


def terms_of(collective: ir.Operation, axis: int, devices: int, taken: Set[ir.Value]) -> Terms:
    """Finds the terms of a sum over devices, a part of which along an axis goes to each of them.

    Args:
      collective: the sum.
      axis: the axis of the sum.
      devices: the number of devices in a group.
      taken: results of products that other exchanges overlap.

    Raises NotPossibleError where no products compute them a part at a time.
    """
    summed = collective.operands[0]
    if shape_of(summed)[axis] % devices:
        raise NotPossibleError(f"{devices} devices do not divide its axis {axis}")
    found = _Finder(collective.block, taken)
    found.follow(summed, axis)
    found.check_readers(collective)
    place = {
        walk.key(view.operation): number
        for number, view in enumerate(collective.block.operations)
        if len(view.operation.results)
    }
    ordered = sorted(found.cuts.values(), key=lambda each: place[walk.key(each.op)])
    products = tuple(each for each in ordered if is_product(each.op))
    return Terms(products, tuple(each for each in ordered if not is_product(each.op)), axis)


class _Finder:
    def __init__(self, block: ir.Block, taken: Set[ir.Value]) -> None:
        self._block, self._taken = block, taken
        self.cuts: dict[Hashable, CutOperation] = {}

    def follow(self, value: ir.Value, axis: int) -> None:
        """Adds the producers of a value. Raises NotPossibleError where it is from no product."""
        maker = defining_op(value)
        if maker is None or maker.block != self._block:
            raise NotPossibleError("no product makes it in the same code")
        cut = cut_result(maker, axis) if is_product(maker) or _is_work(maker) else None
        if cut is None:
            raise NotPossibleError(f"{named(maker)} makes it, which is no product")
        known = self.cuts.get(walk.key(maker))
        if known is not None and known.cut != cut:
            raise NotPossibleError(f"{named(maker)} makes it along two axes")
        self.cuts[walk.key(maker)] = CutOperation(maker, cut)
        if is_product(maker):
            if cut.operands.count(None) != 1:
                raise NotPossibleError(f"its axis is a batch of {named(maker)}")
            if maker.results[0] in self._taken:
                raise NotPossibleError(f"{named(maker)} is beside another exchange")
            return
        made = [
            (operand, place)
            for operand, place in zip(maker.operands, cut.operands, strict=True)
            if place is not None and self._leads_to_product(operand)
        ]
        if not made:
            raise NotPossibleError(f"{named(maker)} makes it, which is no product")
        for operand, place in made:
            self.follow(operand, place)

    def check_readers(self, collective: ir.Operation) -> None:
        """Raises NotPossibleError where another operation reads an intermediate result."""
        for each in self.cuts.values():
            for reader in _readers(each.op):
                if reader != collective and not self._is_inside(reader):
                    raise NotPossibleError(f"others read what {named(each.op)} makes, too")

    def _is_inside(self, op: ir.Operation) -> bool:
        return len(op.results) > 0 and walk.key(op) in self.cuts

    def _leads_to_product(self, value: ir.Value) -> bool:
        """Whether a value is a product's result, or work on one, of the same block."""
        waiting, seen = [value], {value}
        while waiting:
            maker = defining_op(waiting.pop())
            if maker is None or maker.block != self._block:
                continue
            if is_product(maker):
                return True
            if _is_work(maker) and len([*_readers(maker)]) == 1:
                waiting += [each for each in maker.operands if each not in seen]
                seen.update(maker.operands)
        return False


def _readers(op: ir.Operation) -> Iterator[ir.Operation]:
    return (use.owner.operation for result in op.results for use in result.uses)


def _is_work(op: ir.Operation) -> bool:
    return facts_of(op.name).category is Category.ELEMENTWISE or op.name in _MOVED
