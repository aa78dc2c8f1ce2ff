"""Peak memory of a block: its kernels in XLA's order, and the live ranges of their buffers."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.op_facts import BufferUse
from .fusion import INLINED, Kernels
from .latency_hiding import latency_hiding_order
from .schedulers import depth_first_order, greedy_order
from .trace import OpTrace

_IN_PLACE = frozenset({BufferUse.IN_PLACE, BufferUse.UPDATE})


@dataclass(frozen=True)
class Peak:
    """The most bytes alive at once.

    Attributes:
      bytes: their number.
      position: the position of the operation that runs at the peak.
      alive: the values alive at the peak with their bytes, largest first.
      inner_bytes: bytes alive inside that operation; part of ``bytes``.
    """

    bytes: int
    position: int
    alive: tuple[tuple[int, int], ...]
    inner_bytes: int = 0


@dataclass(frozen=True)
class LiveRange:
    """The live range of a value's buffer, from the first time to the last, both included; it ends
    before elementwise work overwrites the buffer."""

    value: int
    bytes: int
    start: int
    end: int


@dataclass(frozen=True)
class BufferTimeline:
    """The memory of a block while it runs.

    Attributes:
      positions: by time, the position of the operation that runs.
      bytes: by time, the bytes alive, those inside that operation included.
      live_ranges: those of the buffers that are counted, by begin.
    """

    positions: tuple[int, ...]
    bytes: tuple[int, ...]
    live_ranges: tuple[LiveRange, ...]

    @property
    def peak_bytes(self) -> int:
        return max(self.bytes, default=0)


_ORDERS = (greedy_order, depth_first_order)


def simulate(trace: OpTrace) -> Peak:
    """Returns a trace's peak in the order that XLA picks: the one of least memory that it tries."""
    kernels = Kernels(trace)
    orders = [order(kernels) for order in _ORDERS]
    peaks = [peak_in_order(kernels, order) for order in orders]
    least = min(peaks, key=lambda peak: peak.bytes)
    if not trace.is_overlapped:
        return least
    return peak_in_order(kernels, latency_hiding_order(kernels, orders[peaks.index(least)]))


def buffer_timeline(trace: OpTrace) -> BufferTimeline:
    """Returns the memory of a trace over time, in the order of `simulate`, with the same peak."""
    kernels = Kernels(trace)
    orders = [order(kernels) for order in _ORDERS]
    timelines = [_Buffers(kernels, order).buffer_timeline() for order in orders]
    least = min(timelines, key=lambda found: found.peak_bytes)
    if not trace.is_overlapped:
        return least
    order = latency_hiding_order(kernels, orders[timelines.index(least)])
    return _Buffers(kernels, order).buffer_timeline()


def peak_in_order(kernels: Kernels, order: list[int]) -> Peak:
    """Returns the peak where the kernels run in this order, each after its operands."""
    if not order:
        return Peak(0, 0, ())
    return _Buffers(kernels, order).peak()


_FOREVER = 1 << 62

_SMALLEST_GUEST_SHARE = 1000
"""Buffers below this share of all bytes are never placed in an output's memory."""


class _Buffers:
    """Live ranges of the buffers of kernels in order. Times are places in the order."""

    def __init__(self, kernels: Kernels, order: list[int]) -> None:
        self.kernels, self.trace, self.order = kernels, kernels.trace, order
        self.time = [0] * len(order)
        for time, number in enumerate(order):
            self.time[number] = time
        self.last = self._last_reads()
        self.over = self._written_over()
        """By buffer that is written over another one, in place, that other one."""
        self.under = {buffer: made for made, buffer in self.over.items() if made in kernels.beside}
        """By buffer that elementwise work overwrites, the value that it writes."""
        self.first: dict[int, int] = {}
        """By buffer that is counted, the begin of its live range."""
        self.outputs: list[tuple[int, int]] = []
        """Size and begin of each returned buffer that has memory of its own."""
        self._find_begins()
        self.end = {
            buffer: max(self.last.get(buffer, -1), time) for buffer, time in self.first.items()
        }
        self._move_to_outputs()

    def _last_reads(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for time, number in enumerate(self.order):
            for buffer in self.kernels.buffers[number]:
                last[buffer] = time
        for buffer in self.kernels.returned():
            last[buffer] = len(self.order)
        return last

    def _written_over(self) -> dict[int, int]:
        """Decides which in-place results need no copy; extends the live ranges of their buffers."""
        trace, kernels, last = self.trace, self.kernels, self.last
        writable = {target for _, target in trace.donations}
        over: dict[int, int] = {}
        in_place = [n for n, p in enumerate(kernels.positions) if trace.uses[p] in _IN_PLACE]
        in_place += [kernels.maker[made] for made in kernels.beside]
        for number in sorted(in_place, key=self.time.__getitem__, reverse=True):
            reads = trace.reads[kernels.positions[number]]
            time = self.time[number]
            for read, made in self._pairs(number):
                buffer = kernels.buffer[read]
                fixed = buffer in trace.inputs and buffer not in writable
                if kernels.free[read] or fixed or last[buffer] > time:
                    continue
                if made not in kernels.beside and reads.count(read) > 1:
                    continue
                over[made] = buffer
                last[buffer] = max(time, last.get(made, time))
                if made in kernels.beside:
                    break
        return over

    def _pairs(self, number: int) -> list[tuple[int, int]]:
        """Returns the buffers that a kernel reads, each with the result that may overwrite it."""
        kernels, makes = self.kernels, self.kernels.makes[number]
        if not makes or makes[0] not in kernels.beside:
            reads = self.trace.reads[kernels.positions[number]]
            return list(zip(reads, makes, strict=False))
        [made], sizes = makes, self.trace.sizes
        return [(read, made) for read in kernels.beside[made] if sizes[read] == sizes[made]]

    def _memory(self, buffer: int) -> int:
        """Returns the buffer in whose memory this one is finally placed."""
        while buffer in self.over:
            buffer = self.over[buffer]
        return buffer

    def _find_begins(self) -> None:
        trace, kernels = self.trace, self.kernels
        zeros: dict[int, int] = {}
        """By key of equal constants, the time when the first to be overwritten is needed."""
        filled: dict[int, int] = {}
        """By such a key, the last of them to be overwritten, where the others are copies of it."""
        uses, positions, buffer = trace.uses, kernels.positions, kernels.buffer
        for time, number in enumerate(self.order):
            position = positions[number]
            for place, value in enumerate(kernels.makes[number]):
                if buffer[value] != value or value in self.over:
                    continue
                self.first[value] = time
                if uses[position] not in _IN_PLACE:
                    continue
                reads = trace.reads[position]
                is_free = place < len(reads) and kernels.free[reads[place]]
                if is_free or value in trace.over_constants:
                    # XLA computes constants of one type in one kernel, for all their readers.
                    key = trace.over_constants.get(value, trace.sizes[value])
                    if key >= trace.fills_apart_bytes:
                        continue
                    filled_at = zeros.setdefault(key, time)
                    if trace.copies_fills:
                        filled[key] = value
                    else:
                        self.first[value] = filled_at
        self.first.update({value: zeros[key] for key, value in filled.items()})
        taking = {self._memory(kernels.buffer[value]): target for value, target in trace.donations}
        for returned in dict.fromkeys([self._memory(b) for b in kernels.returned()]):
            begin = self.first.pop(returned, None)
            if begin is None:
                continue
            if returned not in taking:
                self.outputs.append((trace.sizes[returned], begin))
            elif not self._is_free_for(returned, taking[returned]):
                self.first[returned] = begin

    def _is_free_for(self, buffer: int, target: int) -> bool:
        """Whether a donated input's memory is free when the value that takes it is computed."""
        maker = self.kernels.maker[buffer]
        last = self.last.get(target, -1)
        if last == self.time[maker]:
            return self.kernels.use_of(maker) in INLINED
        return last < self.time[maker]

    def _move_to_outputs(self) -> None:
        """Leaves out the buffers that are placed in an output's memory before the output exists.

        As in XLA, the largest buffers choose first, and take the smallest output that is free.
        """
        sizes = self.trace.sizes
        least = sum([sizes[buffer] for buffer in self.first]) // _SMALLEST_GUEST_SHARE
        outputs = sorted([output for output in self.outputs if output[0] > least])
        if not outputs:
            return
        room = [size for size, _ in outputs]
        taken = [[(begin, _FOREVER)] for _, begin in outputs]
        guests = [buffer for buffer in self.first if least < sizes[buffer] <= room[-1]]
        guests.sort(key=lambda b: (-sizes[b], self.first[b], self.end[b]))
        for guest in guests:
            begin, end = self.first[guest], self.end[guest]
            for number in range(bisect_left(room, sizes[guest]), len(room)):
                if all(end < start or stop < begin for start, stop in taken[number]):
                    taken[number].append((begin, end))
                    del self.first[guest]
                    break

    def _occupants(self, buffer: int) -> Iterator[tuple[int, int, int]]:
        """Yields the values that use a buffer in turn, with their first and last times."""
        begin = self.first[buffer]
        value = buffer
        while (made := self.under.get(value)) is not None:
            written = self.time[self.kernels.maker[made]]
            yield value, begin, written - 1
            value, begin = made, written
        yield value, begin, self.end[buffer]

    def _changes(self) -> list[int]:
        """Returns, by time, the difference in bytes from the time before."""
        sizes = self.trace.sizes
        change = [0] * (len(self.order) + 2)
        for buffer, begin in self.first.items():
            change[begin] += sizes[buffer]
            change[min(self.end[buffer], len(self.order)) + 1] -= sizes[buffer]
        return change

    def buffer_timeline(self) -> BufferTimeline:
        sizes, inner, last = self.trace.sizes, self.trace.inner, len(self.order) - 1
        positions = [self.kernels.positions[number] for number in self.order]
        totals = itertools.accumulate(self._changes())
        live_ranges = [
            LiveRange(value, sizes[value], begin, min(end, last))
            for buffer in self.first
            if sizes[buffer]
            for value, begin, end in self._occupants(buffer)
        ]
        return BufferTimeline(
            positions=tuple(positions),
            bytes=tuple(
                total + inner[position] for total, position in zip(totals, positions, strict=False)
            ),
            live_ranges=tuple(sorted(live_ranges, key=lambda one: (one.start, one.value))),
        )

    def peak(self) -> Peak:
        positions, sizes, inner = self.kernels.positions, self.trace.sizes, self.trace.inner
        change = self._changes()
        total, most, where = 0, -1, 0
        for time, number in enumerate(self.order):
            total += change[time]
            at_work = total + inner[positions[number]]
            if at_work > most:
                most, where = at_work, time
        position = positions[self.order[where]]
        alive = [
            (value, sizes[value])
            for buffer, first in self.first.items()
            if first <= where <= self.end[buffer] and sizes[buffer]
            for value, begin, end in self._occupants(buffer)
            if begin <= where <= end
        ]
        alive.sort(key=lambda entry: (-entry[1], entry[0]))
        return Peak(most, position, tuple(alive), inner[position])
