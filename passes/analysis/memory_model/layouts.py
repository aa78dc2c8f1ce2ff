"""Layouts: the order of axes that XLA keeps a value in, and the stacks it transposes for that.

XLA stores a matrix product's result in the order of its axes, and a transpose only relabels the
order of the same memory. Where a forward loop stacks a value in one order and the backward loop
reads it together with values in another, the whole stack is copied before the backward loop runs.
Where a product's result is read together with values of another product's order, as in attention
over heads in groups, XLA keeps a copy in that order, converted to the type it is read in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.op_facts import OpKind
from ...ir.ops import facts_of
from ...ir.products import ProductAxes
from ...ir.shardings import CONSTRAINT
from ...ir.values import defining_op, shape_of
from ..program import FROM_OUTSIDE, BlockPrograms, Program
from ..reach import settled

Order = tuple[int, ...]
"""Axes of a value from the slowest to the fastest in memory, those of size 1 left out."""


def transposing_bytes(loop: ir.Operation, programs: BlockPrograms) -> int:
    """Returns the bytes that transposing stacks needs before a loop runs, beyond the loop's
    operands.

    The stacks are copied one after the other, before the stacks that the loop fills exist.
    """
    device = programs.device
    if loop.name != "stablehlo.while" or not device.rules.transposes_stacks:
        return 0
    stacks = [stack for stack, _ in transposed_stacks(loop, programs)]
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
    loop: ir.Operation, programs: BlockPrograms, lanes: int = 1
) -> list[tuple[ir.Value, list[ir.Operation]]]:
    """Returns the stacks of earlier loops that this one reads in another order than they are
    written.

    Each comes with the slices that read it in that order. Where the fastest axis is padded to a
    number of lanes, heads that would need padding are kept with another axis as the fastest.
    """
    known: dict[ir.Block, _Orders] = {}

    def orders_in(block: ir.Block) -> _Orders:
        if lanes == 1:
            return programs[block].once(_Orders)
        if block not in known:
            known[block] = _Orders(programs[block], lanes)
        return known[block]

    found = []
    body = loop.regions[1].blocks[0]
    for operand, argument in zip(loop.operands, body.arguments, strict=True):
        writer = defining_op(operand)
        if writer is None or writer.name != "stablehlo.while":
            continue
        writing = writer.regions[1].blocks[0]
        stored = _stored(writing, ir.OpResult(operand).result_number)
        slices = [
            use.owner.operation
            for use in argument.uses
            if use.owner.operation.name == "stablehlo.dynamic_slice"
        ]
        if stored is None or not slices:
            continue
        made, read = orders_in(writing).of(stored), orders_in(body)
        transposed = [one for one in slices if read.of(one.results[0]) != made]
        if transposed:
            found.append((operand, transposed))
    return found


@dataclass(frozen=True)
class TransposedProduct:
    """A product's result that XLA keeps transposed.

    Attributes:
      conversion: the position of the conversion whose result is kept.
      beside: the product whose order the copy has.
    """

    conversion: int
    beside: int


def transposed_products(graph: Program) -> list[TransposedProduct]:
    """Returns the products of which XLA keeps a transposed copy, converted.

    Each is read elementwise together with another product in another order, to which a transpose
    leads; where none or both have one, with an earlier product. In attention over heads in groups
    the other one is the scores, which are transposed for the softmax, and this one the gradient
    that comes back to the softmax's result.
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
    orders, found = graph.once(_Orders), dict[int, TransposedProduct]()
    for position, results in enumerate(graph.results):
        if len(results) != 1 or graph.bytes_of(results[0]) not in sizes:
            continue
        operands, is_move = graph.operands[position], graph.names[position] in _MOVES
        if len(operands) < 2 or is_move or not orders.is_flexible[position]:
            continue
        whole = [each for each in operands if orders.has_shape_of(each, results[0])]
        if len({orders.made[value] for value in whole} - {None}) < 2:
            continue
        behind = sorted(filter(None, map(orders.behind_product, whole)))
        if not behind:
            continue
        _, product, first = behind[-1]
        if len(graph.operands[first]) == 1:
            others = [each for _, each, _ in behind if each != product]
            found[first] = TransposedProduct(first, others[-1] if others else FROM_OUTSIDE)
    return [found[first] for first in sorted(found)]


def _is_product(graph: Program, value: int) -> bool:
    producer = graph.producers[value]
    return producer != FROM_OUTSIDE and graph.names[producer] == "stablehlo.dot_general"


def _is_zeros(value: ir.Value) -> bool:
    op = defining_op(value)
    if op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = defining_op(op.operands[0])
    return op is not None and op.name == "stablehlo.constant"


def _is_returned(value: ir.Value) -> bool:
    """Whether the value is in the memory of the function's caller."""
    return any(use.owner.operation.name == "func.return" for use in value.uses)


def _stored(body: ir.Block, number: int) -> ir.Value | None:
    """Returns the value that a loop's body writes to a stack, one slice an iteration."""
    update = defining_op(walk.terminator(body).operands[number])
    if update is None or update.name != "stablehlo.dynamic_update_slice":
        return None
    return update.operands[1]


_MOVES = frozenset({"stablehlo.transpose", "stablehlo.reshape", "stablehlo.broadcast_in_dim"})


class _Orders:
    """The orders of a block's values: those of their operations, else those of their readers.

    Attributes:
      is_flexible: by operation, whether its result takes the order of its operands.
      made: by value, the order that follows from its operands; None where it may be any.
    """

    def __init__(self, graph: Program, lanes: int = 1) -> None:
        # Not the program itself, which keeps its orders.
        self._lanes, self._device, self._index = lanes, graph.device, graph.index
        self._ops, self._names, self._producers = graph.ops, graph.names, graph.producers
        self._operands, self._results, self._users = graph.operands, graph.results, graph.users
        types: dict[ir.Type, tuple[tuple[int, ...], Order]] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._plain: list[Order] = []
        for value in graph.values[: len(graph.sizes)]:
            type_ = value.type
            if type_ not in types:
                shape = tuple(shape_of(type_))
                types[type_] = shape, tuple(_long(shape))
            shape, plain = types[type_]
            self._shapes.append(shape)
            self._plain.append(plain)
        self._axes: dict[int, Mapping[int, int] | None] = {}
        """By operation that moves elements, the map of its axes."""
        self.is_flexible = [self._takes_order(position) for position in range(len(graph.ops))]
        self.made: list[Order | None] = [None] * len(graph.sizes)
        for position, results in enumerate(graph.results):
            for made in results:
                self.made[made] = self._make(position, made)
        self._known: dict[int, Order | None] = {}
        """By value, the order in ``made``, or, where that may be any, the one of a reader."""

    def of(self, value: ir.Value) -> Order:
        """Returns the order of a value of the block; that of a value of code inside is the order
        of its axes."""
        number = self._index.get(value)
        if number is None or number >= len(self.made):
            return tuple(_long(shape_of(value)))
        found = settled(self._known, number, self._asked_of, self._ask)
        return self._plain[number] if found is None else found

    def has_shape_of(self, one: int, other: int) -> bool:
        """Whether two values have the same shape."""
        return self._shapes[one] == self._shapes[other]

    def behind_product(self, value: int) -> tuple[bool, int, int] | None:
        """Returns the product that a value's order follows from, with whether no transpose leads to
        it, and the first operation after it that does more than move elements; None where the order
        follows from another operation."""
        first, is_plain = None, True
        while (position := self._producers[value]) != FROM_OUTSIDE:
            name = self._names[position]
            if name == "stablehlo.dot_general":
                return None if first is None else (is_plain, position, first)
            is_plain = is_plain and name != "stablehlo.transpose"
            giving = [each for each in self._operands[position] if self.made[each] is not None]
            if not self.is_flexible[position] or not giving:
                return None
            first = first if name in _MOVES else position
            value = giving[0]
        return None

    def _takes_order(self, position: int) -> bool:
        name = self._names[position]
        if name in _MOVES:
            return True
        if name != CONSTRAINT and facts_of(name).kind is not OpKind.CHEAP:
            return False
        shapes, shape = self._shapes, self._shapes[self._results[position][0]]
        return any(shapes[value] == shape for value in self._operands[position])

    def _make(self, position: int, value: int) -> Order | None:
        name = self._names[position]
        if name == "stablehlo.dynamic_slice" or facts_of(name).kind is OpKind.CONSTANT:
            return None
        if self._lanes > 1:
            if name == "stablehlo.dot_general":
                return self._made_by_product(position)
            if (axis := self._axis_before_heads(position)) is not None:
                return self._with_fastest(value, axis)
        if not self.is_flexible[position]:
            return self._plain[value]
        for operand in self._operands[position]:
            order = self.made[operand]
            mapped = None if order is None else self._through(position, order)
            if mapped is not None:
                return mapped
        return None

    def _asked_of(self, value: int) -> list[int]:
        return [self._results[reader][0] for reader in self._made_for(value)]

    def _made_for(self, value: int) -> list[int]:
        """Returns the readers of a value that it takes its order from, the last one first."""
        if self.made[value] is not None:
            return []
        readers = reversed(self._users[value])
        return [
            each for each in readers if self.is_flexible[each] and len(self._results[each]) == 1
        ]

    def _ask(self, value: int) -> Order | None:
        """Returns the order of a reader's result for a value that may have any order."""
        for reader in self._made_for(value):
            order = self._known[self._results[reader][0]]
            asked = None if order is None else self._back(reader, value, order)
            if asked is not None:
                return asked
        return self.made[value]

    def _made_by_product(self, position: int) -> Order:
        """Returns the order of a product: the left operand's fastest axis stays the fastest."""
        [result], left = self._results[position], self._operands[position][0]
        axes = ProductAxes.of(self._ops[position]).left
        made = self.made[left]
        fastest = (self._plain[left] if made is None else made)[-1:]
        if not axes.batch or not fastest or fastest[0] not in axes.free:
            return self._plain[result]
        return self._with_fastest(result, len(axes.batch) + axes.free.index(fastest[0]))

    def _axis_before_heads(self, position: int) -> int | None:
        """Returns the axis before those that a reshape makes of the last one: heads, too narrow for
        lanes."""
        if self._names[position] != "stablehlo.reshape":
            return None
        operand = self._shapes[self._operands[position][0]]
        result = self._shapes[self._results[position][0]]
        is_split = len(operand) > 1 and len(result) == len(operand) + 1
        if not is_split or operand[:-1] != result[:-2] or result[-1] % self._lanes == 0:
            return None
        return len(operand) - 2

    def _with_fastest(self, value: int, axis: int) -> Order:
        others = tuple(other for other in self._plain[value] if other != axis)
        return (*others, axis) if self._shapes[value][axis] > 1 else others

    def _through(self, position: int, order: Order) -> Order | None:
        axes = self._axes_of(position)
        return None if axes is None else tuple(axes[axis] for axis in order if axis in axes)

    def _back(self, position: int, operand: int, order: Order) -> Order | None:
        is_move, [result] = self._names[position] in _MOVES, self._results[position]
        if not is_move and not self.has_shape_of(operand, result):
            return None
        axes = self._axes_of(position)
        if axes is None:
            return None
        inverse = {there: here for here, there in axes.items()}
        return tuple(inverse[axis] for axis in order if axis in inverse)

    def _axes_of(self, position: int) -> Mapping[int, int] | None:
        """Returns, for each operand axis longer than 1, the axis of the result that it becomes.

        None where the operation does more than reorder axes.
        """
        if position not in self._axes:
            self._axes[position] = self._find_axes(position)
        return self._axes[position]

    def _find_axes(self, position: int) -> Mapping[int, int] | None:
        made = self._plain[self._results[position][0]]
        if self._names[position] not in _MOVES:
            return {axis: axis for axis in made}
        found = self._device.kept_axes(self._ops[position])
        if found is None:
            return None
        given = self._plain[self._operands[position][0]]
        is_whole = tuple(sorted(found)) == given and tuple(sorted(found.values())) == made
        return found if is_whole else None


def _long(shape: Sequence[int]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size > 1]
