"""Finds the readers of a gathered value: products that need a part of it at a time, and others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.axis_cuts import cut_operand
from ..analysis.purity import is_pure
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.collectives import is_collective
from ..ir.locations import named
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.types import tensor_bytes
from ..ir.values import defining_op
from .loads import LateLoads, late_loads

PRODUCT = "stablehlo.dot_general"

_MOVED = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"})

_VIEWS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape"})
"""Operations between a value and the stack that a loop stores it in."""


@dataclass(frozen=True)
class Readers:
    """The work done a part at a time after a gather.

    Attributes:
      products: matrix products, in the order of the text.
      work: elementwise operations and movements between the gather and these, in their order.
      tails: elementwise operations on products that make their results narrower, in their order.
      results: the values concatenated from parts: products, or results of tails.
      axes: by value of all these, the axis along which it has parts.
      whole: the readers of all of it: products that contract it, and operations that store it.
      at_once: those of ``whole`` that can run right after the last part.
      first: the first of products and these, before which the ring is placed.
      before: operations that are moved before that one, since products read them.
      late: the loads after the ring, where all of the gathered value is concatenated.
    """

    products: tuple[ir.Operation, ...]
    work: tuple[ir.Operation, ...]
    tails: tuple[ir.Operation, ...]
    results: tuple[ir.Value, ...]
    axes: tuple[tuple[ir.Value, int], ...]
    whole: tuple[ir.Operation, ...]
    at_once: tuple[ir.Operation, ...]
    first: ir.Operation
    before: tuple[ir.Operation, ...]
    late: LateLoads

    def axis_of(self, value: ir.Value) -> int:
        """Returns the axis along which a value of the work, or a product's result, has parts."""
        return dict(self.axes)[value]


def is_product(op: ir.Operation) -> bool:
    """Whether an operation is a matrix product that rings support."""
    return op.name == PRODUCT


def readers_of(
    collective: ir.Operation, axis: int, taken: Set[ir.Value], gathered: Set[ir.Value]
) -> Readers:
    """Finds the readers of a gathered value, of which parts follow each other along an axis.

    Args:
      collective: the gather.
      axis: the axis of its result.
      taken: results of products that other exchanges overlap.
      gathered: values that other rings concatenate, later than they are gathered now.

    Raises NotPossibleError where no product can read it a part at a time, or where another
    operation than a product waits for all of it.
    """
    finder = _Finder(collective, taken, gathered)
    finder.follow(collective.results[0], axis)
    return finder.found()


class _Finder:
    def __init__(
        self, collective: ir.Operation, taken: Set[ir.Value], others: Set[ir.Value]
    ) -> None:
        self._collective, self._block = collective, collective.block
        self._taken, self._others = taken, others
        self._gathered = collective.results[0]
        self._axes: dict[ir.Value, int] = {}
        self._work: list[ir.Operation] = []
        self._products: list[ir.Operation] = []
        self._whole: list[ir.Operation] = []
        self._refusals: list[str] = []

    def follow(self, value: ir.Value, axis: int) -> None:
        """Adds the readers of a value. Raises NotPossibleError for other ones than products."""
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
            cut = None
            if _is_work(reader) or reader.name in _MOVED:
                cut = cut_operand(reader, number, self._axes[value])
            if cut is None or cut.result is None:
                raise NotPossibleError(f"{named(reader)} reads it too, which is no product")
            self._work.append(reader)
            self.follow(reader.results[0], cut.result)

    def _read_by_product(self, value: ir.Value, reader: ir.Operation, number: int) -> None:
        if reader.results[0] in self._taken:
            raise NotPossibleError(f"{named(reader)} is beside another exchange")
        cut = cut_operand(reader, number, self._axes[value])
        is_free = cut is not None and cut.result is not None and cut.operands[1 - number] is None
        reason = ""
        if not is_free:
            is_batch = cut is not None and cut.result is not None
            kind = "is a batch of" if is_batch else "is contracted by"
            reason = f"its axis {kind} {named(reader)}"
        if not reason:
            assert cut is not None
            assert cut.result is not None
            self._axes[reader.results[0]] = cut.result
            self._products.append(reader)
        elif value == self._gathered:
            self._whole.append(reader)
            self._refusals.append(reason)
        else:
            raise NotPossibleError(reason)

    def found(self) -> Readers:
        """Returns the readers. Raises NotPossibleError without a product."""
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
        tails: list[ir.Operation] = []
        results: list[ir.Value] = []
        for op in products:
            tail = self._tail(op)
            try:
                needed = [self._needed_before(each, number, place) for each in tail]
            except NotPossibleError:
                tail = []
            else:
                before |= {key: each for one in needed for key, each in one.items()}
            tails += tail
            results.append((tail[-1] if tail else op).results[0])
        at_once = tuple(op for op in self._whole if self._can_run_at(op, number, place))
        ring = (self._collective, *work, *products, *tails, *at_once, *before.values())
        late = late_loads(ops, number, ring) if self._whole else LateLoads()
        return Readers(
            tuple(products),
            tuple(work),
            tuple(tails),
            tuple(results),
            tuple(self._axes.items()),
            tuple(self._whole),
            at_once,
            first,
            tuple(before[each] for each in sorted(before)),
            late,
        )

    def _can_run_at(self, op: ir.Operation, first: int, place: Mapping[Hashable, int]) -> bool:
        """Whether a product can be moved before another place: all its operands are available, and
        no other exchange overlaps it."""
        if not is_product(op) or _is_exchanged(op):
            return False
        makers = {value: defining_op(value) for value in op.operands if value != self._gathered}
        return not any(
            maker is not None
            and (
                is_collective(maker)
                or (maker.block == self._block and place[walk.key(maker)] >= first)
            )
            for maker in makers.values()
        )

    def _tail(self, product: ir.Operation) -> list[ir.Operation]:
        """Returns elementwise work on a product, in sequence, as far as the result shrinks."""
        found: list[ir.Operation] = []
        narrowest, count = tensor_bytes(product.results[0].type) or 0, 0
        op = product
        while len(uses := list(op.results[0].uses)) == 1:
            reader, number = uses[0].owner.operation, uses[0].operand_number
            if reader.block != self._block or not _is_work(reader):
                break
            cut = cut_operand(reader, number, self._axes[op.results[0]])
            if cut is None or cut.result is None:
                break
            found.append(reader)
            self._axes[reader.results[0]] = cut.result
            taken = tensor_bytes(reader.results[0].type) or 0
            if taken < narrowest:
                narrowest, count = taken, len(found)
            op = reader
        for each in found[count:]:
            del self._axes[each.results[0]]
        return found[:count]

    def _needed_before(
        self, op: ir.Operation, first: int, place: Mapping[Hashable, int]
    ) -> dict[int, ir.Operation]:
        """Returns operations after the first product that make operands of another operation."""
        found: dict[int, ir.Operation] = {}
        waiting = [value for value in op.operands if value not in self._axes]
        while waiting:
            value = waiting.pop()
            if value in self._others:
                raise NotPossibleError(f"{named(op)} reads it, and another value of a ring")
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


def _is_exchanged(op: ir.Operation) -> bool:
    """Whether an exchange reads a result, or elementwise work on it."""
    while len(uses := list(op.results[0].uses)) == 1:
        op = uses[0].owner.operation
        if is_collective(op) or not _is_work(op):
            break
    return is_collective(op)


def _is_work(op: ir.Operation) -> bool:
    return facts_of(op.name).category is Category.ELEMENTWISE


def _place(op: ir.Operation, place: Mapping[Hashable, int]) -> int:
    """Returns the place of an operation in its block; operations without results end it."""
    return place[walk.key(op)] if len(op.results) else len(place)


def _stores(reader: ir.Operation, number: int) -> bool:
    """Whether an operation passes a value on: out of the code, or into a stack of a loop."""
    if facts_of(reader.name).ends_block:
        return True
    if reader.name == "stablehlo.dynamic_update_slice":
        return number == 1
    return reader.name in _VIEWS and all(
        _stores(use.owner.operation, use.operand_number) for use in reader.results[0].uses
    )
