"""Makes a backward loop wait for small results of large values that no operation reads after it.

The loss is a scalar: XLA may compute it last, and then keeps the logits that it is computed from
while the backward loop runs, which is when the most bytes are live. A barrier around the loss and
an operand that the loop starts from makes XLA compute the loss first. In program order it is
computed first in any case, and the planner counts the memory of that order.

The barrier is placed around the value before it was only moved and converted to a wider type, e.g.
a gradient of bfloat16 that the optimizer reads as float32: the operands of a barrier are in memory
in their type, where XLA else computes the wide one inside of its readers.

Zeros that the loop starts from, e.g. the stacks of gradients, wait for nothing: XLA:TPU may have
them in memory together with the logits when it compares orders, and then chooses another order.
There the scalar that they are filled with passes the barrier as well
(`MemoryRules.makes_zeros_early`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ...analysis.program import FROM_OUTSIDE, Program
from ...analysis.purity import erase_unread
from ...analysis.reach import reached
from ...ir.clone import remap_operands
from ...ir.types import tensor_bytes
from ...ir.values import defining_op
from ..block.gathered import may_be_summed

_LEAST_BYTES = 2**20
"""A value has to be this large to be worth a barrier."""

_LEAST_SHARE = 128
"""The dropped bytes have to be this part of the largest value that is made, or more: a barrier is a
tuple in memory, and a plan leaves more of its budget free than smaller ones."""

_SMALLER = 2
"""A result is worth keeping if the values it is computed from are this many times as large."""

_LARGE_SHARE = 8
"""A sum over devices that a loop waits for is not combined with others. It is worth that if the
dropped bytes are this part of the largest value that is made, or more."""


def wait_before(loops: Iterable[ir.Operation], *, zeros_wait: bool = False) -> None:
    """Inserts a barrier before each loop before which a large value can be dropped.

    ``zeros_wait`` is whether zeros that the loops start from are made after it.
    """
    blocks: dict[ir.Block, _Waits] = {}
    read: list[_Waits] = []
    for loop in loops:
        waits = blocks.get(loop.block)
        if waits is None or waits.is_stale(loop):
            waits = blocks[loop.block] = _Waits(Program(loop.block), zeros_wait=zeros_wait)
            read.append(waits)
        waits.put_before(loop)
    erase_unread(op for waits in read for op in waits.replaced)


class _Waits:
    """Barriers before loops of one block, which is read once for loops from the last to the first.

    Code before a loop is unchanged while barriers are inserted only after it; only the reads of the
    code after a loop count.
    """

    def __init__(self, graph: Program, *, zeros_wait: bool) -> None:
        self._graph, self._zeros_wait = graph, zeros_wait
        self._barriers: dict[int, list[ir.Operation]] = {}
        """By value, the barriers that were placed around it."""
        self._held: set[int] = set()
        """The values whose readers after a loop read a barrier's result."""
        self.replaced: list[ir.Operation] = []
        """The operations that are repeated after a barrier."""
        self._first = len(graph.ops)
        """The position of the first loop with a barrier."""
        self._largest = max(map(graph.bytes_of, _made(graph)), default=0)
        """The bytes of the largest value that is made in the block."""

    def is_stale(self, loop: ir.Operation) -> bool:
        """Whether a barrier is before a loop."""
        return self._position(loop) > self._first

    def put_before(self, loop: ir.Operation) -> None:
        """Inserts a barrier before the loop, if it has a value to wait for."""
        graph, position = self._graph, self._position(loop)
        start = _start(loop, graph)
        early = [] if start is None else _early(position, graph, self._largest)
        if start is None or not early:
            return
        narrow = [_narrow(value, graph) for value in early]
        values = [graph.values[value] for value in dict.fromkeys(narrow)]
        with ir.InsertionPoint(loop), loop.location:
            zeros = _zeros_of(loop) if self._zeros_wait else {}
            fills = list(dict.fromkeys(op.operands[0] for op in zeros.values()))
            barrier = stablehlo.OptimizationBarrierOp([*values, *fills, loop.operands[start]])
        *after, first = barrier.results
        loop.operands[start] = first
        held: dict[ir.Value, ir.Value] = dict(zip([*values, *fills], after, strict=True))
        for operand, op in zeros.items():
            clone = op.clone(ir.InsertionPoint(loop)).operation
            clone.operands[0] = held[op.operands[0]]
            loop.operands[operand] = clone.results[0]
        self.replaced += zeros.values()
        for number, source in zip(early, narrow, strict=True):
            if number not in self._held:
                wide = self._widened(number, source, held, loop)
                for reader in graph.users[number]:
                    if reader > position:
                        remap_operands(graph.ops[reader], {graph.values[number]: wide})
                self._held.add(number)
        for source in dict.fromkeys(narrow):
            around = self._barriers.setdefault(source, [])
            for other in around:
                remap_operands(other, held)
            around.append(barrier.operation)
        self._first = position

    def _widened(
        self, number: int, source: int, held: dict[ir.Value, ir.Value], loop: ir.Operation
    ) -> ir.Value:
        """Returns a value before a loop, after the barrier around its source."""
        graph = self._graph
        made_by: list[ir.Operation] = []
        while number != source:
            producer = graph.producers[number]
            made_by.append(graph.ops[producer])
            [number] = graph.operands[producer]
        self.replaced += made_by
        value = held[graph.values[source]]
        for op in reversed(made_by):
            clone = op.clone(ir.InsertionPoint(loop)).operation
            clone.operands[0] = value
            [value] = clone.results
        return value

    def _position(self, loop: ir.Operation) -> int:
        return self._graph.producers[self._graph.index[loop.results[0]]]


def _made(graph: Program) -> Iterator[int]:
    """Yields values that are computed in a block: no arguments, and none that a loop passes on."""
    for op, results in zip(graph.ops, graph.results, strict=True):
        from_ = results
        if op.name == "stablehlo.while":
            from_ = [graph.index[operand] for operand in op.operands]
        for value, origin in zip(results, from_, strict=True):
            if graph.producers[origin] != FROM_OUTSIDE:
                yield value


def _start(loop: ir.Operation, graph: Program) -> int | None:
    """Returns the number of the smallest tensor that is computed for the loop to start from."""
    computed = [
        (graph.bytes_of(value), number)
        for number, value in enumerate(map(graph.index.__getitem__, loop.operands))
        if graph.producers[value] != FROM_OUTSIDE
        and graph.sizes[value] is not None
        and not graph.constant_derived[value]
    ]
    return min(computed)[1] if computed else None


def _zeros_of(loop: ir.Operation) -> dict[int, ir.Operation]:
    """Returns, by the number of an operand, the operation that fills it, if it is large."""
    found = {number: defining_op(value) for number, value in enumerate(loop.operands)}
    return {
        number: op
        for number, op in found.items()
        if op is not None
        and op.name == "stablehlo.broadcast_in_dim"
        and (tensor_bytes(op.results[0].type) or 0) >= _LEAST_BYTES
        and (fill := defining_op(op.operands[0])) is not None
        and fill.name == "stablehlo.constant"
    }


_RELABELS = frozenset({"stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose"})
"""Operations that give a value the same numbers, in another order or type."""


def _narrow(number: int, graph: Program) -> int:
    """Returns the smallest value, and of these the last, that has the same numbers as a value."""
    narrowest = number
    while graph.names[graph.producers[number]] in _RELABELS:
        [number] = graph.operands[graph.producers[number]]
        if graph.producers[number] == FROM_OUTSIDE:
            break
        if graph.bytes_of(number) < graph.bytes_of(narrowest):
            narrowest = number
    return narrowest


def _early(position: int, graph: Program, largest: int) -> list[int]:
    """Returns values that are read after the loop only, and are small beside their operands.

    These are values made before the loop that the loop does not need, and whose computation reads a
    large value that no operation needs from the loop on.
    """
    needed = _needed_by(position, graph)
    dropped = [0] * position
    """By operation, the largest value that can be dropped once it has run."""
    early: list[int] = []
    least = max(_LEAST_BYTES, largest // _LEAST_SHARE)
    for place in range(position):
        if place in needed or not graph.operands[place]:
            continue
        for value in graph.operands[place]:
            producer = graph.producers[value]
            if producer == FROM_OUTSIDE:
                continue
            dropped[place] = max(dropped[place], dropped[producer])
            if graph.users[value][-1] < position:
                dropped[place] = max(dropped[place], graph.bytes_of(value))
        early += [
            value
            for value in graph.results[place]
            if graph.users[value]
            and graph.users[value][-1] > position
            and graph.sizes[value] is not None
            and dropped[place] >= max(_SMALLER * graph.bytes_of(value), least)
            and (dropped[place] * _LARGE_SHARE >= largest or not may_be_summed(graph, value))
        ]
    return early


def _needed_by(position: int, graph: Program) -> set[int]:
    """Returns the operations whose results an operation is computed from."""

    def makers(reader: int) -> set[int]:
        return {graph.producers[value] for value in graph.operands[reader]} - {FROM_OUTSIDE}

    return reached(makers(position), makers)
