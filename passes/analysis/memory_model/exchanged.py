"""Memory of exchanges: what a device holds of its peers' parts while something reads them.

A gathered value lies in memory beside the part that the device has of it, from where XLA gathers it
to its last reader; what is summed and scattered lies there whole before. An all-reduce is done in
place, and what an all-to-all gives takes no more than what it was given. XLA makes one exchange of
several that wait for nothing: a layer's gathered weights then lie there together from the first
reader on, and its gradients up to the last one that is made.

Source: all_gather_combiner.cc and reduce_scatter_combiner.cc in xla/hlo/transforms/collectives, and
the thresholds in xla/service/gpu/gpu_compiler.cc. Seen in XLA's buffer assignment for 8 H100s, jax
0.10.2 and 0.12.0.1, 2026-11-24.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...ir import walk
from ...ir.ops import facts_of
from ..flops import operation_flops
from ..program import Program
from ..purity import CHEAP_KINDS
from ..reach import reached
from ..shardings.exchanged import SUMS
from ..shardings.exchanges import Exchange
from .fusion import INLINED
from .trace import OpTrace, Timing

_COMBINED_BYTES = 30 * 2**20
"""Results of exchanges of one kind are combined up to this size (xla_gpu_*_combine_threshold)."""

_WORK_PER_BYTE = 200
"""FLOPs of a product in the time in which memory moves a byte, about as many as an H100 reaches in
16 bits. What XLA has for other GPUs was not looked at."""

_BYTES_PER_SENT, _BYTES_PER_EXCHANGE = 7, 2**24
"""Bytes that memory moves in the time of a byte along the links, and in the 5 us that an exchange
takes at the least."""


@dataclass(frozen=True)
class _Held:
    """Bytes of an exchange, held while the operations from one position to another run.

    Attributes:
      exchange: what is sent.
      value: the number of the value that it sends.
      bytes: their number, on one device.
      first, last: the positions, both included.
      waits: whether it cannot be made together with others: what it sends depends on a product, or
        what it sums is read by one.
    """

    exchange: Exchange
    value: int
    bytes: int
    first: int
    last: int
    waits: bool

    @property
    def group(self) -> tuple[str, str, tuple[str, ...], int, int]:
        """What others must have in common with it to be combined: all-reduces the type as well."""
        exchange = self.exchange
        element = exchange.type.rpartition("x")[2] if exchange.kind == "all-reduce" else ""
        return exchange.kind, element, exchange.axes, exchange.devices, exchange.span


def hold_exchanged(graph: Program, trace: OpTrace) -> None:
    """Adds what a block's exchanges hold to the bytes inside of its operations.

    XLA orders the kernels of a block that has any beside them (`latency_hiding`). In a loop's body
    the order stays: with the other one most rows of `partitioned_h100` with loops are less near to
    XLA's figures.
    """
    if not graph.device.exchanged.exchanges:
        return
    reader = _Reader(graph, trace)
    is_inner = any(facts_of(parent.name).branches for parent in walk.ancestors(graph.block))
    hides_latency = graph.device.rules.hides_latency
    trace.is_overlapped = hides_latency and not is_inner and reader.has_exchanges
    gathers, others = list(_combined(reader.gathered())), list(_combined(reader.made()))
    if trace.is_overlapped:
        trace.timings = dict(reader.timings([*gathers, *others]))
    for combined in gathers:
        first = min(held.first for held in combined)
        for held in combined:
            _hold(graph, trace, held.bytes, first, held.last)
    for combined in others:
        last = max(held.last for held in combined)
        for held in filter(lambda held: held.bytes, combined):
            _hold(graph, trace, held.bytes, held.first, last)


def _hold(graph: Program, trace: OpTrace, held_bytes: int, first: int, last: int) -> None:
    """Holds bytes from one operation to another.

    Where XLA orders the kernels once more, while what the latter waits for runs: the product for a
    weight's gradient, which nothing waits for, comes behind it wherever the text has it.
    """

    def makers(reader: int) -> Iterator[int]:
        for value in graph.operands[reader]:
            if graph.producers[value] > first:
                yield graph.producers[value]

    waited = reached([last], makers) if trace.is_overlapped else range(first + 1, last + 1)
    for position in {first, *waited}:
        trace.inner[position] += held_bytes


def _combined(exchanges: Iterable[_Held]) -> Iterator[list[_Held]]:
    """Exchanges that XLA makes one of, in the order of the text."""
    together: dict[tuple[str, str, tuple[str, ...], int, int], list[_Held]] = {}
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
    """Finds where a block's exchanges are made and read."""

    def __init__(self, graph: Program, trace: OpTrace) -> None:
        self._graph, self._trace = graph, trace
        self._exchanged = graph.device.exchanged
        positions = range(len(trace.uses))
        self._after_product = self._marked(positions, graph.operands, graph.results)
        self._before_product = self._marked(positions[::-1], graph.results, graph.operands)

    @property
    def has_exchanges(self) -> bool:
        """Whether something of the block's is exchanged in it."""
        exchanged = self._exchanged
        return any(
            exchanged.read_by(op) or any(map(exchanged.sent, op.results))
            for op in self._graph.ops[: len(self._trace.uses)]
        )

    def timings(self, combined: Sequence[Sequence[_Held]]) -> Iterator[tuple[int, Timing]]:
        """Those of operations, by the first value made; what is ``combined`` is one exchange."""
        exchanged: dict[int, tuple[int, int]] = {}
        for number, group in enumerate(combined):
            sent_bytes = sum(held.exchange.sent_bytes // held.exchange.runs for held in group)
            moved = _BYTES_PER_EXCHANGE + _BYTES_PER_SENT * sent_bytes
            exchanged.update({held.value: (moved, number) for held in group})
        graph, sizes = self._graph, self._graph.device.sizes
        for position, made in enumerate(self._trace.makes):
            worked = 0
            if graph.kinds[position] not in CHEAP_KINDS:
                worked = round(operation_flops(graph.ops[position], sizes) / _WORK_PER_BYTE)
            found = next((exchanged[value] for value in made if value in exchanged), None)
            if made and (worked or found):
                yield made[0], Timing(worked, *(found or (0, 0)))

    def gathered(self) -> Iterator[_Held]:
        """What is gathered is held from the first to the last kernel that reads it.

        Where a constraint has it gathered the reader reads the constraint's result: a value.
        """
        readers: dict[int, list[int]] = {}
        sent: dict[int, int] = {}
        waiting: set[int] = set()
        for position, op in enumerate(self._graph.ops[: len(self._trace.uses)]):
            read = set(self._exchanged.read_by(op))
            for value in self._graph.operands[position] if read else ():
                for number in read.intersection(self._sent(value)):
                    readers.setdefault(number, []).append(position)
                    sent[number] = value
                    if value in self._after_product:
                        waiting.add(number)
        for number, positions in readers.items():
            exchange = self._exchanged.exchanges[number]
            if exchange.kind == "all-gather":
                last, waits = max(map(self._kernel_of, positions)), number in waiting
                held_bytes = exchange.result_bytes
                yield _Held(exchange, sent[number], held_bytes, positions[0], last, waits)

    def made(self) -> Iterator[_Held]:
        """What is sent where it is made. What is scattered is held whole from there."""
        for position, made in enumerate(self._graph.results[: len(self._trace.uses)]):
            for value in made:
                for number in self._sent(value):
                    exchange = self._exchanged.exchanges[number]
                    if exchange.kind == "all-gather":
                        continue
                    is_scattered = exchange.kind == "reduce-scatter"
                    whole_bytes = exchange.result_bytes * exchange.devices if is_scattered else 0
                    waits = exchange.kind not in SUMS or value in self._before_product
                    yield _Held(exchange, value, whole_bytes, position, position, waits)

    def _sent(self, value: int) -> tuple[int, ...]:
        """The numbers of the exchanges that send a value of the block."""
        return self._exchanged.sent(self._graph.values[value])

    def _kernel_of(self, position: int) -> int:
        """The operation whose kernel a reader is part of: itself, or what alone reads on."""
        graph, trace = self._graph, self._trace
        while trace.uses[position] in INLINED:
            users = graph.users[graph.results[position][0]]
            if len(users) != 1 or users[0] >= len(trace.uses):
                break
            position = users[0]
        return position

    def _marked(
        self, order: Iterable[int], start: list[list[int]], stop: list[list[int]]
    ) -> set[int]:
        """The values that follow from a product's in one direction, or hold other code."""
        marked: set[int] = set()
        for position in order:
            heavy = self._graph.kinds[position] not in CHEAP_KINDS
            if heavy or not marked.isdisjoint(start[position]):
                marked.update(stop[position])
        return marked
