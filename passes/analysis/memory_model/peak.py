"""The peak of a line of work: its kernels in XLA's order, their buffers, and who is in whose."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass

from hloom.passes.analysis.memory_model.fusion import INLINED, Kernels
from hloom.passes.analysis.memory_model.schedulers import depth_first_order, greedy_order
from hloom.passes.analysis.memory_model.trace import OpTrace
from hloom.passes.ir.op_facts import BufferUse


@dataclass(frozen=True)
class Peak:
    """The most bytes alive at once.

    Attributes:
      bytes: how many.
      position: the operation that runs then.
      alive: the values alive then with their bytes, largest first.
      inner_bytes: what is alive inside that operation; part of ``bytes``.
    """

    bytes: int
    position: int
    alive: tuple[tuple[int, int], ...]
    inner_bytes: int = 0


@dataclass(frozen=True)
class Life:
    """How long a value's buffer is there: from the first time to the last, both included."""

    value: int
    bytes: int
    start: int
    end: int


@dataclass(frozen=True)
class BufferTimeline:
    """The memory of a line of work while it runs.

    Attributes:
      positions: by time, the operation that runs.
      bytes: by time, what is alive, inside that operation too.
      lives: the buffers that are counted in it, by begin.
    """

    positions: tuple[int, ...]
    bytes: tuple[int, ...]
    lives: tuple[Life, ...]

    @property
    def peak_bytes(self) -> int:
        return max(self.bytes, default=0)


_ORDERS = (greedy_order, depth_first_order)


def simulate(line: OpTrace) -> Peak:
    """The peak of a line as XLA would run it: in the order of those it tries that needs least."""
    kernels = Kernels(line)
    peaks = [peak_in_order(kernels, order(kernels)) for order in _ORDERS]
    return min(peaks, key=lambda peak: peak.bytes)


def buffer_timeline(line: OpTrace) -> BufferTimeline:
    """The same line over time, in the same order; its peak is that of `simulate`."""
    kernels = Kernels(line)
    timelines = [_Buffers(kernels, order(kernels)).buffer_timeline() for order in _ORDERS]
    return min(timelines, key=lambda found: found.peak_bytes)


def peak_in_order(kernels: Kernels, order: list[int]) -> Peak:
    """The peak where the kernels run in this order, each after its operands."""
    if not order:
        return Peak(0, 0, ())
    return _Buffers(kernels, order).peak()


_FOREVER = 1 << 62

_SMALLEST_GUEST_SHARE = 1000
"""Buffers below this share of all bytes are not worth a place in an output's memory."""


class _Buffers:
    """The buffers that kernels in order need: when the first kernel writes one, the last reads it.

    Times are places in the order.
    """

    def __init__(self, kernels: Kernels, order: list[int]) -> None:
        self.kernels, self.line, self.order = kernels, kernels.line, order
        self.time = [0] * len(order)
        for time, number in enumerate(order):
            self.time[number] = time
        self.last = self._last_reads()
        self.over = self._written_over()
        """For a buffer that a kernel writes over another one's memory, that one."""
        self.first: dict[int, int] = {}
        """When each buffer that is counted begins."""
        self.outputs: list[tuple[int, int]] = []
        """Size and begin of each buffer that is returned in memory of its own."""
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
        """Decides which in-place results need no copy; prolongs what they are written over."""
        line, kernels, last = self.line, self.kernels, self.last
        writable = {target for _, target in line.into}
        over: dict[int, int] = {}
        in_place = [
            n for n, p in enumerate(kernels.positions) if line.work[p] is BufferUse.IN_PLACE
        ]
        for number in sorted(in_place, key=self.time.__getitem__, reverse=True):
            reads = line.reads[kernels.positions[number]]
            time = self.time[number]
            for read, made in zip(reads, kernels.makes[number], strict=False):
                buffer = kernels.buffer[read]
                fixed = buffer in line.given and buffer not in writable
                if kernels.free[read] or fixed or reads.count(read) > 1 or last[buffer] > time:
                    continue
                over[made] = buffer
                last[buffer] = max(time, last.get(made, time))
        return over

    def _memory(self, buffer: int) -> int:
        """The buffer in whose memory this one stands in the end."""
        while buffer in self.over:
            buffer = self.over[buffer]
        return buffer

    def _find_begins(self) -> None:
        line, kernels = self.line, self.kernels
        zeros: dict[int, int] = {}
        """By size, when the first constant of that size to be written over is needed."""
        work, positions, buffer = line.work, kernels.positions, kernels.buffer
        for time, number in enumerate(self.order):
            position = positions[number]
            for place, value in enumerate(kernels.makes[number]):
                if buffer[value] != value or value in self.over:
                    continue
                self.first[value] = time
                if work[position] is not BufferUse.IN_PLACE:
                    continue
                reads = line.reads[position]
                if place < len(reads) and kernels.free[reads[place]]:
                    # XLA makes constants of one size in one kernel, for all who will need them.
                    self.first[value] = zeros.setdefault(line.sizes[value], time)
        taking = {self._memory(kernels.buffer[value]): target for value, target in line.into}
        for returned in dict.fromkeys([self._memory(b) for b in kernels.returned()]):
            begin = self.first.pop(returned, None)
            if begin is None:
                continue
            if returned not in taking:
                self.outputs.append((line.sizes[returned], begin))
            elif not self._is_free_for(returned, taking[returned]):
                self.first[returned] = begin

    def _is_free_for(self, buffer: int, target: int) -> bool:
        """Whether a given value's memory is free when what is to take its place is made."""
        maker = self.kernels.maker[buffer]
        last = self.last.get(target, -1)
        if last == self.time[maker]:
            return self.kernels.work(maker) in INLINED
        return last < self.time[maker]

    def _move_to_outputs(self) -> None:
        """Takes out the buffers that stand in an output's memory before the output is there.

        As in XLA, the largest choose first, the smallest output that is free all the while.
        """
        sizes = self.line.sizes
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

    def _changes(self) -> list[int]:
        """By time, how many bytes more there are than the time before."""
        sizes = self.line.sizes
        change = [0] * (len(self.order) + 2)
        for buffer, begin in self.first.items():
            change[begin] += sizes[buffer]
            change[min(self.end[buffer], len(self.order)) + 1] -= sizes[buffer]
        return change

    def buffer_timeline(self) -> BufferTimeline:
        sizes, inner, last = self.line.sizes, self.line.inner, len(self.order) - 1
        positions = [self.kernels.positions[number] for number in self.order]
        totals = itertools.accumulate(self._changes())
        lives = [
            Life(buffer, sizes[buffer], begin, min(self.end[buffer], last))
            for buffer, begin in self.first.items()
            if sizes[buffer]
        ]
        return BufferTimeline(
            positions=tuple(positions),
            bytes=tuple(
                total + inner[position] for total, position in zip(totals, positions, strict=False)
            ),
            lives=tuple(sorted(lives, key=lambda life: (life.start, life.value))),
        )

    def peak(self) -> Peak:
        positions, sizes, inner = self.kernels.positions, self.line.sizes, self.line.inner
        change = self._changes()
        total, most, where = 0, -1, 0
        for time, number in enumerate(self.order):
            total += change[time]
            at_work = total + inner[positions[number]]
            if at_work > most:
                most, where = at_work, time
        position = positions[self.order[where]]
        alive = [
            (buffer, sizes[buffer])
            for buffer, begin in self.first.items()
            if begin <= where <= self.end[buffer] and sizes[buffer]
        ]
        alive.sort(key=lambda entry: (-entry[1], entry[0]))
        return Peak(most, position, tuple(alive), inner[position])
