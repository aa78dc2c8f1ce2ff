"""Memory of exchanges: the bytes of its peers' parts that a device holds while they are read.

A gathered value is in memory beside the device's own part of it, from its all-gather to its last
reader; the operand of a reduce-scatter is in memory whole before it. An all-reduce is done in
place, and the result of an all-to-all takes no more than its operand. XLA combines exchanges that
do not wait for others: a layer's gathered weights are then all in memory from the first reader on,
and its gradients until the last one is computed.

The trace contains all facts of exchanges (`OpTrace.exchanges`), so that their memory is computed
again once a plan has written clones into it: a reader of a parameter behind a barrier, or of its
recomputation, gathers it again, and its former readers no longer hold it.

Source: all_gather_combiner.cc and reduce_scatter_combiner.cc in xla/hlo/transforms/collectives, and
the thresholds in xla/service/gpu/gpu_compiler.cc. The rules agree with XLA's buffer assignment for
8 H100s, jax 0.10.2 and 0.12.0.1, 2026-11-24.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...ir import walk
from ...ir.op_facts import Category
from ...ir.ops import facts_of
from ...ir.shardings import CONSTRAINT
from ..flops import operation_flops
from ..program import FROM_OUTSIDE, Program
from ..purity import CHEAP_KINDS
from ..reach import reached
from ..shardings.exchanged import SUMS
from ..shardings.exchanges import Exchange
from .fusion import INLINED
from .trace import Exchanging, OpTrace, Timing

_GATHER = "all-gather"

_COMBINED_BYTES = 30 * 2**20
"""Results of exchanges of one kind are combined up to this size (xla_gpu_*_combine_threshold)."""

_WORK_PER_BYTE = 200
"""FLOPs of a product in the time in which memory moves a byte, about as many as an H100 reaches in
16 bits. XLA's figures for other GPUs were not examined."""

_BYTES_PER_SENT, _BYTES_PER_EXCHANGE = 7, 2**24
"""Bytes that memory moves while the links send one byte, and in the 5 us that an exchange takes at
the least."""


@dataclass(frozen=True)
class _Held:
    """Bytes of an exchange, held while the operations from one position to another run.

    Attributes:
      exchange: the exchange.
      value: the number of the value that it sends.
      bytes: their number, on one device.
      first, last: the positions, both included.
      waits: whether it cannot be combined with others: its operand depends on a product, or a
        product reads its sum.
    """

    exchange: Exchange
    value: int
    bytes: int
    first: int
    last: int
    waits: bool

    @property
    def is_made(self) -> bool:
        """Whether a constraint gathers the value, which is its result."""
        return self.exchange.kind == _GATHER and not self.bytes

    @property
    def group(self) -> tuple[str, str, tuple[str, ...], int, int, bool]:
        """Returns the key of exchanges that may be combined; all-reduces need equal types too."""
        exchange = self.exchange
        element = exchange.type.rpartition("x")[2] if exchange.kind == "all-reduce" else ""
        where = exchange.axes, exchange.devices, exchange.span
        return exchange.kind, element, *where, self.is_made


def hold_exchanged(graph: Program, trace: OpTrace) -> None:
    """Records a block's exchanges, and adds their memory to the bytes inside of its operations.

    Where a block has exchanges, XLA orders its kernels so that exchanges run beside them
    (`latency_hiding`). In a loop's body the model keeps the first order: with the other one its
    figures are further from XLA's in most rows of `partitioned_h100` with loops.
    """
    exchanged = graph.device.exchanged
    if not exchanged.exchanges:
        return
    is_inner = any(facts_of(parent.name).branches for parent in walk.ancestors(graph.block))
    has_exchanges = any(
        exchanged.read_by(op) or any(map(exchanged.sent, op.results))
        for op in graph.ops[: len(trace.uses)]
    )
    trace.is_overlapped = graph.device.rules.hides_latency and not is_inner and has_exchanges
    for position, made in enumerate(trace.makes):
        if not made:
            continue
        if graph.kinds[position] not in CHEAP_KINDS:
            # Work counts only where the schedule depends on it.
            op, is_timed = graph.ops[position], trace.is_overlapped
            flops = operation_flops(op, graph.device.sizes) if is_timed else 0
            trace.work[made[0]] = round(flops / _WORK_PER_BYTE)
        if found := tuple(_exchanging(graph, position)):
            trace.exchanges[made[0]] = found
        if graph.names[position] == CONSTRAINT:
            trace.sizes[made[0]] = _kept_of_sum(graph, position)
    hold_anew(trace)


def _kept_of_sum(graph: Program, position: int) -> int:
    """Returns the bytes that a device keeps of a constraint's result: of a sum over devices whose
    readers are elementwise, what these read. XLA scatters it (reduce_scatter_creator.cc)."""
    [made], [summed] = graph.results[position], graph.operands[position]
    size, exchanged = graph.bytes_of(made), graph.device.exchanged
    while (maker := graph.producers[summed]) >= 0 and graph.names[maker] == "stablehlo.transpose":
        [summed] = graph.operands[maker]
    sent = exchanged.sent(graph.values[summed])
    is_sum = any(exchanged.exchanges[number].kind in SUMS for number in sent)
    readers = graph.users[made] if is_sum else ()
    if {facts_of(graph.names[reader]).category for reader in readers} != {Category.ELEMENTWISE}:
        return size
    share = graph.device.shardings.share
    read = max(share(graph.values[graph.results[reader][0]]) for reader in readers)
    return min(size, math.ceil(size * read / (share(graph.values[made]) or 1)))


def _exchanging(graph: Program, position: int) -> Iterator[Exchanging]:
    """Yields the exchanges that an operation reads or sends."""
    exchanged, op = graph.device.exchanged, graph.ops[position]
    if op.name == CONSTRAINT:
        for number in exchanged.repeated_by(op):
            if exchanged.exchanges[number].kind == _GATHER:
                yield Exchanging(number, exchanged.exchanges[number], graph.results[position][0])
    read = set(exchanged.read_by(op))
    for value in graph.operands[position] if read else ():
        for number in exchanged.sent(graph.values[value]):
            exchange = exchanged.exchanges[number]
            if number in read and exchange.kind == _GATHER:
                yield Exchanging(number, exchange, value)
    for value in graph.results[position]:
        for number in exchanged.sent(graph.values[value]):
            exchange = exchanged.exchanges[number]
            if exchange.kind != _GATHER:
                yield Exchanging(number, exchange, value)


def hold_anew(trace: OpTrace) -> None:
    """Computes the memory that the exchanges of a changed trace hold, in place of the former."""
    if not trace.exchanges:
        return
    reader = _Reader(trace)
    gathers, others = list(_combined(reader.gathered())), list(_combined(reader.made()))
    if trace.is_overlapped:
        trace.timings = dict(_timings(trace, [*gathers, *others]))
    before, trace.held = trace.held or [0] * len(trace.uses), [0] * len(trace.uses)
    for combined in gathers:
        first = min(held.first for held in combined)
        for held in combined:
            reader.hold(held.bytes, first, held.last)
    for combined in others:
        last = max(held.last for held in combined)
        for held in filter(lambda held: held.bytes, combined):
            reader.hold(held.bytes, held.first, last)
    changes = zip(trace.inner, before, trace.held, strict=True)
    trace.inner = [inner - was + held for inner, was, held in changes]


def _timings(trace: OpTrace, combined: Sequence[Sequence[_Held]]) -> Iterator[tuple[int, Timing]]:
    """Yields the timings of operations, by the first value made; ``combined`` ones are one."""
    exchanged: dict[int, tuple[int, int, bool]] = {}
    for number, group in enumerate(combined):
        sent_bytes = sum(held.exchange.sent_bytes // held.exchange.runs for held in group)
        moved = _BYTES_PER_EXCHANGE + _BYTES_PER_SENT * sent_bytes
        exchanged.update({held.value: (moved, number, held.is_made) for held in group})
    for made in trace.makes:
        worked = trace.work.get(made[0], 0) if made else 0
        found = next((exchanged[value] for value in made if value in exchanged), None)
        if made and (worked or found):
            yield made[0], Timing(worked, *(found or ()))


def _combined(exchanges: Iterable[_Held]) -> Iterator[list[_Held]]:
    """Yields the groups of exchanges that XLA combines, in the order of the text."""
    together: dict[Hashable, list[_Held]] = {}
    for each in sorted(exchanges, key=lambda held: held.first):
        group = together.setdefault(each.group, [])
        size = sum(held.exchange.result_bytes for held in (*group, each))
        if each.waits:
            yield [each]
        elif group and size > _COMBINED_BYTES:
            yield group
            together[each.group] = [each]
        else:
            group.append(each)
    yield from filter(None, together.values())


class _Reader:
    """Finds the operations that send and read a trace's exchanges."""

    def __init__(self, trace: OpTrace) -> None:
        self._trace = trace
        self._producer = [FROM_OUTSIDE] * len(trace.sizes)
        self._readers = [0] * len(trace.sizes)
        """By value, the number of operations that read it, the block's end included."""
        self._reader = [FROM_OUTSIDE] * len(trace.sizes)
        """By value, the position of the first operation that reads it."""
        for value in trace.returned:
            self._readers[value] = 1
        for position in range(len(trace.uses) - 1, -1, -1):
            for value in trace.makes[position]:
                self._producer[value] = position
            for value in set(trace.reads[position]):
                self._readers[value] += 1
                self._reader[value] = position
        positions = range(len(trace.uses))
        self._after_product = self._marked(positions, trace.reads, trace.makes)
        self._before_product = self._marked(positions[::-1], trace.makes, trace.reads)

    def gathered(self) -> Iterator[_Held]:
        """Yields the gathered values, held from the first to the last kernel that reads them.

        Where a constraint requires the gather, the gathered value is the constraint's result.
        """
        read: dict[tuple[int, int], tuple[Exchange, list[int]]] = {}
        for position, each in self._exchanging():
            if each.exchange.kind == _GATHER:
                _, positions = read.setdefault((each.number, each.value), (each.exchange, []))
                positions.append(position)
        for (_, value), (exchange, positions) in read.items():
            last, waits = max(map(self._kernel_of, positions)), value in self._after_product
            is_made = self._producer[value] == positions[0]
            held_bytes = 0 if is_made else exchange.result_bytes
            yield _Held(exchange, value, held_bytes, positions[0], last, waits)

    def made(self) -> Iterator[_Held]:
        """Yields the values that are sent, held where they are computed; scattered ones whole."""
        for position, (_, exchange, value) in self._exchanging():
            if exchange.kind == _GATHER:
                continue
            is_scattered = exchange.kind == "reduce-scatter"
            whole_bytes = exchange.result_bytes * exchange.devices if is_scattered else 0
            waits = exchange.kind not in SUMS or value in self._before_product
            yield _Held(exchange, value, whole_bytes, position, position, waits)

    def hold(self, held_bytes: int, first: int, last: int) -> None:
        """Holds bytes from one operation to another.

        Where XLA orders the kernels once more, the range is that of the operations that the last
        one waits for: the product for a weight's gradient, which nothing waits for, runs after it
        at any position in the text.
        """
        trace, producer = self._trace, self._producer

        def makers(reader: int) -> Iterator[int]:
            return (producer[value] for value in trace.reads[reader] if producer[value] > first)

        waited = reached([last], makers) if trace.is_overlapped else range(first + 1, last + 1)
        for position in {first, *waited}:
            trace.held[position] += held_bytes

    def _exchanging(self) -> Iterator[tuple[int, Exchanging]]:
        """Yields the exchanges of each operation, by its position."""
        exchanges = self._trace.exchanges
        for position, made in enumerate(self._trace.makes):
            for each in exchanges.get(made[0], ()) if made else ():
                yield position, each

    def _kernel_of(self, position: int) -> int:
        """Returns the operation whose kernel contains a reader: itself, or its only reader."""
        trace = self._trace
        while trace.uses[position] in INLINED:
            value = trace.makes[position][0]
            if self._readers[value] != 1 or self._reader[value] == FROM_OUTSIDE:
                break
            position = self._reader[value]
        return position

    def _marked(
        self, order: Iterable[int], start: list[list[int]], stop: list[list[int]]
    ) -> set[int]:
        """Returns the values that follow from work, in the direction from ``start`` to ``stop``."""
        trace, marked = self._trace, set[int]()
        for position in order:
            made = trace.makes[position]
            heavy = bool(made) and made[0] in trace.work
            if heavy or not marked.isdisjoint(start[position]):
                marked.update(stop[position])
        return marked
