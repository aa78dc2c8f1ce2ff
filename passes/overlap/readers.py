"""What reads a gathered value: products that need a part of it at a time, and others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.axis_cuts import cut_operand
from ..analysis.purity import is_pure
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.locations import source_line
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.values import defining_op

PRODUCT = "stablehlo.dot_general"

_MOVED = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"})

_VIEWS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape"})
"""What stands between a value and the stack that a loop stores it in."""


@dataclass(frozen=True)
class Readers:
    """What is done a part at a time behind a gather.

    Attributes:
      products: matrix products, in the order of the text.
      work: elementwise operations and movements between the gather and these, in their order.
      axes: by value of the work, and by product's result, the axis along which it has parts.
      whole: what reads all of it: products that contract it, and what stores it.
      first: the first of products and these, before which a ring stands.
      before: operations that are moved before that one, since products read them.
    """

    products: tuple[ir.Operation, ...]
    work: tuple[ir.Operation, ...]
    axes: tuple[tuple[ir.Value, int], ...]
    whole: tuple[ir.Operation, ...]
    first: ir.Operation
    before: tuple[ir.Operation, ...]

    def axis_of(self, value: ir.Value) -> int:
        """The axis along which a value of the work, or a product's result, has parts."""
        return dict(self.axes)[value]


def is_product(op: ir.Operation) -> bool:
    """Whether an operation is a matrix product that rings know."""
    return op.name == PRODUCT


def named(op: ir.Operation) -> str:
    """An operation for people, with its line."""
    line = source_line(op.location)
    name = op.name.rpartition(".")[2]
    return f"{name} ({line})" if line else name


def readers_of(collective: ir.Operation, axis: int, taken: Set[ir.Value]) -> Readers:
    """The readers of a gathered value, of which parts follow each other along an axis.

    Args:
      collective: whose result it is.
      axis: of the result.
      taken: results of products that other exchanges are beside.

    Raises NotPossibleError where no product can take it a part at a time, or where something else
    than a product waits for all of it.
    """
    finder = _Finder(collective, taken)
    finder.follow(collective.results[0], axis)
    return finder.found()


class _Finder:
    def __init__(self, collective: ir.Operation, taken: Set[ir.Value]) -> None:
        self._block, self._taken = collective.block, taken
        self._gathered = collective.results[0]
        self._axes: dict[ir.Value, int] = {}
        self._work: list[ir.Operation] = []
        self._products: list[ir.Operation] = []
        self._whole: list[ir.Operation] = []
        self._refusals: list[str] = []

    def follow(self, value: ir.Value, axis: int) -> None:
        """Takes in what reads a value. Raises NotPossibleError for what is no product."""
        self._axes[value] = axis
        for use in value.uses:
            reader = use.owner.operation
            if reader.block != self._block:
                raise NotPossibleError(f"{named(reader)} reads it inside of other code")
            self._read(value, reader, use.operand_number)

    def _read(self, value: ir.Value, reader: ir.Operation, number: int) -> None:
        if len(reader.results) and reader.results[0] in self._axes:
            # Its other operand has parts as well: along the same axis, or not at all.
            cut = cut_operand(reader, number, self._axes[value])
            if is_product(reader) or cut is None or cut.result != self._axes[reader.results[0]]:
                raise NotPossibleError(f"{named(reader)} reads it by both of its operands")
        elif is_product(reader):
            self._read_by_product(value, reader, number)
        elif value == self._gathered and _stores(reader, number):
            self._whole.append(reader)
        else:
            facts = facts_of(reader.name)
            cut = None
            if facts.category is Category.ELEMENTWISE or reader.name in _MOVED:
                cut = cut_operand(reader, number, self._axes[value])
            if cut is None or cut.result is None:
                raise NotPossibleError(f"{named(reader)} reads it too, which is no product")
            self._work.append(reader)
            self.follow(reader.results[0], cut.result)

    def _read_by_product(self, value: ir.Value, reader: ir.Operation, number: int) -> None:
        cut = cut_operand(reader, number, self._axes[value])
        is_free = cut is not None and cut.result is not None and cut.operands[1 - number] is None
        reason = ""
        if not is_free:
            is_batch = cut is not None and cut.result is not None
            kind = "is a batch of" if is_batch else "is contracted by"
            reason = f"its axis {kind} {named(reader)}"
        elif reader.results[0] in self._taken:
            reason = f"{named(reader)} is beside another exchange"
        if not reason:
            assert cut is not None and cut.result is not None
            self._axes[reader.results[0]] = cut.result
            self._products.append(reader)
        elif value == self._gathered:
            self._whole.append(reader)
            self._refusals.append(reason)
        else:
            raise NotPossibleError(reason)

    def found(self) -> Readers:
        """What was found. Raises NotPossibleError without a product."""
        ops = [view.operation for view in self._block.operations]
        place = {walk.key(op): number for number, op in enumerate(ops) if len(op.results)}
        products = sorted(self._products, key=lambda op: place[walk.key(op)])
        work = sorted(self._work, key=lambda op: place[walk.key(op)])
        if not products:
            raise NotPossibleError(
                self._refusals[0] if self._refusals else "no product reads it in the same code"
            )
        first = min([*products, *self._whole], key=lambda op: _place(op, place))
        number = _place(first, place)
        before: dict[int, ir.Operation] = {}
        for op in (*work, *products):
            before |= self._needed_before(op, number, place)
        moved = tuple(before[each] for each in sorted(before))
        axes = tuple(self._axes.items())
        return Readers(tuple(products), tuple(work), axes, tuple(self._whole), first, moved)

    def _needed_before(
        self, op: ir.Operation, first: int, place: Mapping[Hashable, int]
    ) -> dict[int, ir.Operation]:
        """What stands behind the first product and makes what another operation reads."""
        found: dict[int, ir.Operation] = {}
        waiting = [value for value in op.operands if value not in self._axes]
        while waiting:
            value = waiting.pop()
            maker = defining_op(value)
            if maker is None or maker.block != self._block:
                continue
            number = place[walk.key(maker)]
            if number < first or number in found:
                continue
            if value in self._axes or not is_pure(maker):
                raise NotPossibleError(
                    f"{named(op)} reads it too, and waits for what another product of it makes"
                )
            found[number] = maker
            waiting += walk.values_read(maker)
        return found


def _place(op: ir.Operation, place: Mapping[Hashable, int]) -> int:
    """The place of an operation in its block; what has no results ends it."""
    return place[walk.key(op)] if len(op.results) else len(place)


def _stores(reader: ir.Operation, number: int) -> bool:
    """Whether an operation gives a value on: out of the code, or into a stack of a loop."""
    if facts_of(reader.name).ends_block:
        return True
    if reader.name == "stablehlo.dynamic_update_slice":
        return number == 1
    return reader.name in _VIEWS and all(
        _stores(use.owner.operation, use.operand_number) for use in reader.results[0].uses
    )
