"""Has a backward loop wait for small results of large values that nothing reads behind it.

The loss is a number: XLA may compute it last, and then keeps the logits that it is computed from
while the backward loop runs, which is when the most bytes are alive. A barrier around the loss and
something that the loop starts from has the loss computed first. In the order of the program it is
computed first in any case, and that is the order whose memory the planner counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ...analysis.program import FROM_OUTSIDE, Program
from ...analysis.reach import reached
from ...ir.clone import remap_operands
from ..block.gathered import may_be_summed

_LEAST_BYTES = 2**20
"""A value has to be this large to be worth a barrier."""

_SMALLER = 2
"""A result is worth its place if what it is computed from is this many times as large."""

_LARGE_SHARE = 8
"""A sum over devices that is waited for is not done together with others. It is worth that if what
can be dropped is this part of the largest value, or more."""


def wait_before(loops: Iterable[ir.Operation]) -> None:
    """Puts a barrier before each loop before which something large can be dropped."""
    blocks: dict[ir.Block, _Waits] = {}
    for loop in loops:
        waits = blocks.get(loop.block)
        if waits is None or waits.is_stale(loop):
            waits = blocks[loop.block] = _Waits(Program(loop.block))
        waits.put_before(loop)


class _Waits:
    """Barriers before loops of one block, which is read once for loops from the last to the first.

    What lies before a loop is as it was read while barriers were put behind it only, and of what
    lies behind it counts no more than that it reads something.
    """

    def __init__(self, graph: Program) -> None:
        self._graph = graph
        self._barriers: dict[int, list[ir.Operation]] = {}
        """By value the barriers that were put around it."""
        self._first = len(graph.ops)
        """The position of the first loop with a barrier."""

    def is_stale(self, loop: ir.Operation) -> bool:
        """Whether a barrier lies before a loop."""
        return self._position(loop) > self._first

    def put_before(self, loop: ir.Operation) -> None:
        """Puts a barrier before the loop, if there is something to wait for."""
        graph, position = self._graph, self._position(loop)
        start = _start(loop, graph)
        early = [] if start is None else _early(position, graph)
        if start is None or not early:
            return
        values = [graph.values[value] for value in early]
        with ir.InsertionPoint(loop), loop.location:
            barrier = stablehlo.OptimizationBarrierOp([*values, loop.operands[start]])
        *after, first = barrier.results
        loop.operands[start] = first
        for number, value, result in zip(early, values, after, strict=True):
            around = self._barriers.setdefault(number, [])
            behind = [graph.ops[reader] for reader in graph.users[number] if reader > position]
            for reader in (*behind, *around):
                remap_operands(reader, {value: result})
            around.append(barrier.operation)
        self._first = position

    def _position(self, loop: ir.Operation) -> int:
        return self._graph.producers[self._graph.index[loop.results[0]]]


def _start(loop: ir.Operation, graph: Program) -> int | None:
    """The number of the smallest tensor that is computed for the loop to start from."""
    computed = [
        (graph.bytes_of(value), number)
        for number, value in enumerate(map(graph.index.__getitem__, loop.operands))
        if graph.producers[value] != FROM_OUTSIDE
        and graph.sizes[value] is not None
        and not graph.constant_derived[value]
    ]
    return min(computed)[1] if computed else None


def _early(position: int, graph: Program) -> list[int]:
    """What is read behind the loop only, and is small beside what it is computed from.

    That is, of values made before the loop that the loop does not need, those whose computation
    reads something large that nothing needs from the loop on.
    """
    needed = _needed_by(position, graph)
    dropped = [0] * position
    """By operation, the largest value that can be dropped once it has run."""
    early: list[int] = []
    largest = max(size or 0 for size in graph.sizes)
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
            and dropped[place] >= max(_SMALLER * graph.bytes_of(value), _LEAST_BYTES)
            and (dropped[place] * _LARGE_SHARE >= largest or not may_be_summed(graph, value))
        ]
    return early


def _needed_by(position: int, graph: Program) -> set[int]:
    """The operations whose results an operation is computed from."""

    def makers(reader: int) -> set[int]:
        return {graph.producers[value] for value in graph.operands[reader]} - {FROM_OUTSIDE}

    return reached(makers(position), makers)
