"""Layouts: the order of axes that XLA keeps a value in, and the stacks it transposes for that.

XLA gives a matrix product's result the order of its axes, and turns a transpose into a mere other
order of the same memory. Where a forward loop stacks a value in one order and the backward loop
reads it together with values in another, the whole stack is copied before the backward loop runs.
Where a product's result is read together with values of another product's order, as with attention
over heads in groups, a copy of it in that order is kept, converted to the type it is read in.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.op_facts import Kind
from ...ir.products import ProductAxes
from ...ir.shardings import CONSTRAINT
from ...ir.values import defining_op, shape_of
from ..device import DeviceView
from ..program import FROM_OUTSIDE, Program
from ..purity import kind_of
from ..reach import settled
from ..signatures import signature_of

Order = tuple[int, ...]
"""Axes of a value from the slowest to the fastest in memory, those of size 1 left out."""


def transposing_bytes(loop: ir.Operation, device: DeviceView) -> int:
    """Bytes that transposing stacks needs before a loop runs, beyond the loop's operands.

    The stacks are copied one after the other, and before what the loop is to fill is made.
    """
    if loop.name != "stablehlo.while" or not device.rules.transposes_stacks:
        return 0
    stacks = [stack for stack, _ in transposed_stacks(loop)]
    largest = max((device.bytes_of(stack) or 0 for stack in stacks), default=0)
    if not largest:
        return 0
    filled = [
        device.bytes_of(operand) or 0
        for operand, result in zip(loop.operands, loop.results, strict=True)
        if _is_zeros(operand) and not _is_returned(result)
    ]
    return max(0, largest - sum(filled))


def transposed_stacks(
    loop: ir.Operation, lanes: int = 1
) -> list[tuple[ir.Value, list[ir.Operation]]]:
    """The stacks of earlier loops that this one reads in another order than they are written.

    Each with the slices that it is read by in that order. Where the fastest axis is padded to a
    number of lanes, heads that would have to be padded are kept with another axis as the fastest.
    """
    orders: dict[Hashable, _Orders] = {}

    def orders_in(op: ir.Operation) -> _Orders:
        key = walk.key(op)
        if key not in orders:
            orders[key] = _Orders(op.regions[1].blocks[0], lanes)
        return orders[key]

    found = []
    arguments = loop.regions[1].blocks[0].arguments
    for operand, argument in zip(loop.operands, arguments, strict=True):
        writer = defining_op(operand)
        if writer is None or writer.name != "stablehlo.while":
            continue
        stored = _stored(writer, ir.OpResult(operand).result_number)
        slices = [
            use.owner.operation
            for use in argument.uses
            if use.owner.operation.name == "stablehlo.dynamic_slice"
        ]
        if stored is None or not slices:
            continue
        made = orders_in(writer).of(stored)
        transposed = [one for one in slices if orders_in(loop).of(one.results[0]) != made]
        if transposed:
            found.append((operand, transposed))
    return found


def transposed_products(graph: Program) -> list[int]:
    """Positions of the conversions of which XLA keeps a transposed copy.

    Each converts a product that is read elementwise together with an earlier product in another
    order. In attention over heads in groups the earlier one is the scores, which are transposed for
    the softmax, and the later one the gradient that comes back to the softmax's result.
    """
    sizes = {
        graph.bytes_of(graph.results[position][0])
        for position, name in enumerate(graph.names)
        if name == "stablehlo.transpose" and _is_product(graph, graph.operands[position][0])
    }
    if not sizes:
        return []
    # And in half or twice the bytes, as a product of bfloat16 converted to float32.
    sizes |= {size * 2 for size in sizes} | {size // 2 for size in sizes}
    orders, found = _Orders(graph.block, lanes=1), set[int]()
    for position, results in enumerate(graph.results):
        if len(results) != 1 or graph.bytes_of(results[0]) not in sizes:
            continue
        op = graph.ops[position]
        if len(graph.operands[position]) < 2 or op.name in _MOVES or not _is_flexible(op):
            continue
        shape = shape_of(op.results[0])
        whole = [each for each in op.operands if shape_of(each) == shape]
        if len({orders.made(value) for value in whole} - {None}) < 2:
            continue
        behind = (orders.behind_product(value) for value in whole)
        places = [[graph.producers[graph.index[op.results[0]]] for op in pair] for pair in behind]
        product, first = max(filter(None, places), default=(FROM_OUTSIDE, FROM_OUTSIDE))
        if product != FROM_OUTSIDE and len(graph.operands[first]) == 1:
            found.add(first)
    return sorted(found)


def _is_product(graph: Program, value: int) -> bool:
    producer = graph.producers[value]
    return producer != FROM_OUTSIDE and graph.names[producer] == "stablehlo.dot_general"


def _is_zeros(value: ir.Value) -> bool:
    op = defining_op(value)
    if op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = defining_op(op.operands[0])
    return op is not None and op.name == "stablehlo.constant"


def _is_returned(value: ir.Value) -> bool:
    """Whether the value is in memory of the function's caller."""
    return any(use.owner.operation.name == "func.return" for use in value.uses)


def _stored(loop: ir.Operation, number: int) -> ir.Value | None:
    """The value that a loop's body writes to a stack, one slice an iteration."""
    update = defining_op(walk.terminator(loop.regions[1].blocks[0]).operands[number])
    if update is None or update.name != "stablehlo.dynamic_update_slice":
        return None
    return update.operands[1]


class _Orders:
    """The orders of a body's values: as they are made, else as their readers would like them.

    An order is found out when it is asked for, which few of a body's values are.
    """

    def __init__(self, block: ir.Block, lanes: int) -> None:
        self._block, self._lanes = block, lanes
        self._as_made: dict[ir.Value, Order | None] = {}
        """None of what may be made in any order."""
        self._known: dict[ir.Value, Order | None] = {}
        """The same, and of what may be made in any order the one that its readers would like."""
        self._readers: dict[ir.Value, list[ir.Operation]] = {}
        """By value that may be made in any order, the readers that may like one, last first."""

    def of(self, value: ir.Value) -> Order:
        found = settled(self._known, value, self._asked_of, self._ask)
        return _plain(value) if found is None else found

    def behind_product(self, value: ir.Value) -> Sequence[ir.Operation]:
        """The product that a value has its order from, and the first operation behind it that does
        more than to move elements; empty where it has it from elsewhere."""
        first = None
        while (op := self._maker(value)) is not None:
            if op.name == "stablehlo.dot_general":
                return (op, first) if first is not None else ()
            giving = [each for each in op.operands if self.made(each) is not None]
            if not _is_flexible(op) or not giving:
                return ()
            first = first if op.name in _MOVES else op
            value = giving[0]
        return ()

    def made(self, value: ir.Value) -> Order | None:
        """The order that a value has for its operands' sake; None where it may be any."""
        return settled(self._as_made, value, self._made_of, self._make)

    def _made_of(self, value: ir.Value) -> Sequence[ir.Value]:
        """What a value takes its order from."""
        op = self._maker(value)
        if op is None:
            return ()
        if self._lanes > 1 and op.name == "stablehlo.dot_general":
            return op.operands[:1]
        return op.operands if _is_flexible(op) else ()

    def _make(self, value: ir.Value) -> Order | None:
        op = self._maker(value)
        if op is None or op.name == "stablehlo.dynamic_slice" or kind_of(op) is Kind.CONSTANT:
            return None
        if self._lanes > 1 and op.name == "stablehlo.dot_general":
            return self._made_by_product(op)
        if self._lanes > 1 and (axis := _axis_before_heads(op, self._lanes)) is not None:
            return _with_fastest(value, axis)
        if not _is_flexible(op):
            return _plain(value)
        taken = (self._as_made[operand] for operand in op.operands)
        mapped = (_through(op, order) for order in taken if order is not None)
        return next((order for order in mapped if order is not None), None)

    def _maker(self, value: ir.Value) -> ir.Operation | None:
        """The operation of the body that makes a value."""
        op = defining_op(value)
        return op if op is not None and op.block == self._block else None

    def _asked_of(self, value: ir.Value) -> list[ir.Value]:
        return [reader.results[0] for reader in self._made_for(value)]

    def _made_for(self, value: ir.Value) -> list[ir.Operation]:
        """The readers of a value that it takes its order from, the last one first."""
        found = self._readers.get(value)
        if found is None:
            found = [] if self.made(value) is not None else self._asking(value)
            self._readers[value] = found
        return found

    def _asking(self, value: ir.Value) -> list[ir.Operation]:
        readers = [use.owner.operation for use in value.uses]
        asking = [op for op in readers if self._asks(op)]
        if len(asking) > 1:
            asking.sort(key=lambda op: self._place[walk.key(op)], reverse=True)
        return asking

    def _asks(self, op: ir.Operation) -> bool:
        return len(op.results) == 1 and _is_flexible(op) and op.block == self._block

    @functools.cached_property
    def _place(self) -> dict[Hashable, int]:
        """By the key of an operation of the body, its place."""
        return {walk.key(view.operation): n for n, view in enumerate(self._block.operations)}

    def _ask(self, value: ir.Value) -> Order | None:
        """Gives what may be in any order the one that suits the result of a reader."""
        for reader in self._made_for(value):
            order = self._known[reader.results[0]]
            asked = None if order is None else _back(reader, value, order)
            if asked is not None:
                return asked
        return self.made(value)

    def _made_by_product(self, op: ir.Operation) -> Order:
        """The order of a product: the left operand's fastest axis stays the fastest."""
        [result], left = op.results, op.operands[0]
        axes = ProductAxes.of(op).left
        made = self._as_made[left]
        fastest = (_plain(left) if made is None else made)[-1:]
        if not axes.batch or not fastest or fastest[0] not in axes.free:
            return _plain(result)
        return _with_fastest(result, len(axes.batch) + axes.free.index(fastest[0]))


_MOVES = frozenset({"stablehlo.transpose", "stablehlo.reshape", "stablehlo.broadcast_in_dim"})


def _is_flexible(op: ir.Operation) -> bool:
    """Whether the operation's result takes the order of its operands."""
    if op.name in _MOVES:
        return True
    if op.name != CONSTRAINT and kind_of(op) is not Kind.CHEAP:
        return False
    result = op.results[0].type
    return any(shape_of(operand.type) == shape_of(result) for operand in op.operands)


def _through(op: ir.Operation, order: Order) -> Order | None:
    axes = _axes(op)
    if axes is None:
        return None
    return tuple(axes[axis] for axis in order if axis in axes)


def _back(op: ir.Operation, operand: ir.Value, order: Order) -> Order | None:
    if op.name not in _MOVES and shape_of(operand.type) != shape_of(op.results[0].type):
        return None
    axes = _axes(op)
    if axes is None:
        return None
    inverse = {there: here for here, there in axes.items()}
    return tuple(inverse[axis] for axis in order if axis in inverse)


def _axes(op: ir.Operation) -> dict[int, int] | None:
    """For each axis of the operand that is longer than 1, the axis of the result it becomes.

    None where the operation does more than to order them anew.
    """
    if op.name not in _MOVES:
        return {axis: axis for axis in _long(shape_of(op.results[0]))}
    signature = signature_of(op)
    if signature is None:
        return None
    found = signature.kept_axes()
    given, made = (_long(shape_of(value)) for value in (op.operands[0], op.results[0]))
    return found if sorted(found) == given and sorted(found.values()) == made else None


def _axis_before_heads(op: ir.Operation, lanes: int) -> int | None:
    """The axis before those that a reshape makes of the last one: heads, too narrow for lanes."""
    if op.name != "stablehlo.reshape":
        return None
    operand, result = shape_of(op.operands[0].type), shape_of(op.results[0].type)
    is_split = len(operand) > 1 and len(result) == len(operand) + 1
    if not is_split or operand[:-1] != result[:-2] or result[-1] % lanes == 0:
        return None
    return len(operand) - 2


def _with_fastest(value: ir.Value, axis: int) -> Order:
    others = tuple(other for other in _plain(value) if other != axis)
    return (*others, axis) if shape_of(value.type)[axis] > 1 else others


def _long(shape: list[int]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size > 1]


def _plain(value: ir.Value) -> Order:
    return tuple(_long(shape_of(value.type)))
