"""The order of a block's kernels beside exchanges, as XLA's latency-hiding scheduler makes it.

The scheduler places kernels from the end of the program to its start. An exchange ends before the
first kernel that reads its result, and begins before kernels that take as much time as the
exchange; one runs at a time, of several that could end the longest is first. Of the kernels whose
readers are placed the scheduler takes one that waits for the most exchanges: a chain continues
while it can, and where an exchange interrupts it, kernels fill the gap that nothing waits for, such
as the products for weights' gradients. The kernel that fills the gap best is taken first, then the
one that makes most others ready, then the last by the previous order. Memory has no influence.

Times are in bytes that the device's memory moves meanwhile (`trace.Timing`).

Source: ReadySetLt::AIsBetterThanB and ScheduleNode in xla/service/latency_hiding_scheduler.cc;
compiled with jax 0.10.2 and 0.12.0.1, 2026-11-27.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from ...ir.op_facts import BufferUse
from .fusion import REDUCTIONS, Kernels
from .trace import Timing

_LATENCY = 3_300_000
"""The time from a kernel's placement until its operands can be placed without a pause: a
microsecond of an H100. Once a shorter kernel is placed, kernels of other chains are placed before
its operands; without this delay a U-Net split by the batch was predicted 11 % too low, and is
within 2 %."""

_PAIRED_BYTES, _NEAR = 2**16, 64
"""Kernels of fewer bytes are no pairs, nor such that are more kernels apart in the program."""


def latency_hiding_order(kernels: Kernels, order: Sequence[int]) -> list[int]:
    """Returns the order that the scheduler computes from a previous one."""
    return _Scheduler(kernels, order).run()


@dataclass
class _Exchange:
    """An exchange of the results of kernels.

    Attributes:
      takes: its time.
      kernels: the kernels whose results it sends.
      unread: the number of these that have readers which are not placed.
      begin: the time from which its begin can be placed, once its end is.
      is_gather: whether its kernels are constraints that gather: they begin it, and are no work.
    """

    takes: int
    kernels: list[int] = field(default_factory=list)
    unread: int = 0
    begin: int = 0
    is_gather: bool = False


@dataclass
class _Pair:
    """Two kernels that are placed together.

    Attributes:
      released: the kernels of the pair whose readers are placed.
      is_apart: whether the two are placed one by one after all.
    """

    released: list[int] = field(default_factory=list)
    is_apart: bool = False


class _Scheduler:
    """Places kernels and exchanges, the last first; times count from the end."""

    def __init__(self, kernels: Kernels, order: Sequence[int]) -> None:
        self._order = order
        self._place = [0] * len(order)
        for place, number in enumerate(order):
            self._place[number] = place
        self._operands, self._users = kernels.operands, kernels.users
        self._reduced_with = _reduced_with(kernels)
        self._behind = Counter(itertools.chain.from_iterable(self._reduced_with.values()))
        """By reduction, the number of kernels fused with it that are not placed."""
        self._exchange = _exchanges(kernels)
        self._takes = _times(kernels)
        self._depth = self._depths(kernels)
        self._pairs = _pairs(kernels, self._depth)
        self._unplaced = [len(users) for users in self._users]
        self._makes_ready = [0] * len(order)
        for number, count in enumerate(self._unplaced):
            if count == 1:
                self._makes_ready[self._users[number][0]] += 1
        self._is_placed = [False] * len(order)
        self._is_ready = [False] * len(order)
        self._placed: list[int] = []
        self._time = 0
        self._wake = 0
        """The time from which the last kernel's operands can be placed without a pause."""
        self._ready: dict[int, list[tuple[int, int]]] = {}
        """By depth the kernels that can be placed: the number that each makes ready, negative, and
        its place, negative; the valid entry of a kernel is its least."""
        self._depths_ready: list[int] = []
        """The depths with ready kernels, negative."""
        self._held: set[int] = set()
        """Reductions that could be placed, were the kernels fused with them placed."""
        self._soon: list[tuple[int, int]] = []
        """Times from which kernels can be placed without a pause, and these kernels."""
        self._ends: list[tuple[int, int, int]] = []
        """The exchanges whose ends can be placed: the time, negative, the greatest place of the
        kernels, negative, and the kernel of that place."""
        self._running: _Exchange | None = None

    def _depths(self, kernels: Kernels) -> list[int]:
        """Returns, by kernel, the length of the longest chain of exchanges that it waits for."""
        sent = {each.value for found in kernels.trace.exchanges.values() for each in found}
        gathered = sent & kernels.trace.inputs
        depth: list[int] = []
        for operands, buffers in zip(self._operands, kernels.buffers, strict=True):
            before = (depth[each] + (each in self._exchange) for each in operands)
            depth.append(max(before, default=0) or int(not gathered.isdisjoint(buffers)))
        return depth

    def run(self) -> list[int]:
        for number, count in enumerate(self._unplaced):
            if not count:
                self._release(number)
        while len(self._placed) < len(self._order):
            while self._soon and self._soon[0][0] <= self._time:
                self._add(heappop(self._soon)[1])
            deepest, running = self._deepest(), self._running
            if running is None and self._ends:
                self._running = self._exchange[heappop(self._ends)[-1]]
                self._running.begin = self._time + self._running.takes
            elif running is not None and self._begins(running, deepest):
                self._running = None
                for number in running.kernels:
                    (self._put if running.is_gather else self._add)(number)
            elif deepest is not None:
                self._put(self._next(deepest))
            else:
                self._pause()
        return self._placed[::-1]

    def _begins(self, running: _Exchange, deepest: int | None) -> bool:
        """Whether the exchange begins here: its time has passed, and another one waits, or no ready
        kernel waits for more exchanges."""
        if running.begin > self._time:
            return False
        depth = max(self._depth[number] for number in running.kernels)
        return deepest is None or bool(self._ends) or depth >= max(deepest, 1)

    def _pause(self) -> None:
        """Advances to the time at which a kernel or an exchange can be placed next.

        Where kernels that are fused or sent together wait for each other, some are placed first.
        """
        times = [time for time, _ in self._soon[:1]]
        if self._running is not None:
            times.append(self._running.begin)
        if times:
            self._time = min(times)
            return
        for pair in self._pairs.values():
            if len(pair.released) == 1 and not pair.is_apart:
                pair.is_apart = True
                self._release_alone(pair.released[0])
                return
        for number, together in self._exchange.items():
            if together.unread and not self._unplaced[number]:
                together.kernels.remove(number)
                self._exchange[number] = replace(together, kernels=[number], unread=0, begin=0)
                heappush(self._ends, (-together.takes, -self._place[number], number))
                return
        raise RuntimeError("no kernel is left to be placed beside exchanges")

    def _deepest(self) -> int | None:
        """Returns the greatest depth of a ready kernel."""
        while self._depths_ready:
            depth = -self._depths_ready[0]
            entries = self._ready[depth]
            while entries and self._is_placed[self._order[-entries[0][1]]]:
                heappop(entries)
            if entries:
                return depth
            heappop(self._depths_ready)
            del self._ready[depth]
        return None

    def _next(self, depth: int) -> int:
        """Returns the ready kernel of a depth that is placed next."""
        entries = self._ready[depth]
        left = 0 if self._running is None else self._running.begin - self._time
        if left <= 0:
            return self._order[-entries[0][1]]

        def rank(entry: tuple[int, int]) -> tuple[int, int, int]:
            return abs(left - self._takes[self._order[-entry[1]]]), *entry

        waiting = (entry for entry in entries if not self._is_placed[self._order[-entry[1]]])
        return self._order[-min(waiting, key=rank)[1]]

    def _put(self, number: int) -> None:
        self._is_placed[number] = True
        self._placed.append(number)
        self._wake = self._time + _LATENCY
        self._time += self._takes[number]
        for operand in self._operands[number]:
            self._unplaced[operand] -= 1
            if not self._unplaced[operand]:
                self._release(operand)
            elif self._unplaced[operand] == 1:
                other = next(user for user in self._users[operand] if not self._is_placed[user])
                self._makes_ready[other] += 1
                if self._is_ready[other]:
                    self._add(other)
        for other in self._reduced_with.get(number, ()):
            self._behind[other] -= 1
            if not self._behind[other] and other in self._held:
                self._add(other)

    def _release(self, number: int) -> None:
        """Makes a kernel ready once its readers are placed; one of a pair waits for the other."""
        pair = self._pairs.get(number)
        if pair is None or pair.is_apart:
            self._release_alone(number)
            return
        pair.released.append(number)
        if len(pair.released) == 2:
            for each in pair.released:
                self._release_alone(each)

    def _release_alone(self, number: int) -> None:
        """Makes a kernel ready, regardless of others to be placed with it."""
        exchange = self._exchange.get(number)
        if exchange is None:
            if self._wake > self._time:
                heappush(self._soon, (self._wake, number))
            else:
                self._add(number)
            return
        exchange.unread -= 1
        if not exchange.unread:
            last = max(exchange.kernels, key=self._place.__getitem__)
            heappush(self._ends, (-exchange.takes, -self._place[last], last))

    def _add(self, number: int) -> None:
        """Adds a kernel to the ready ones, or a new entry beside its former one."""
        if self._behind[number]:
            self._held.add(number)
            return
        self._is_ready[number] = True
        depth = self._depth[number]
        if depth not in self._ready:
            self._ready[depth] = []
            heappush(self._depths_ready, -depth)
        heappush(self._ready[depth], (-self._makes_ready[number], -self._place[number]))


def _times(kernels: Kernels) -> list[int]:
    """Returns the time of each kernel."""
    sizes, timings = kernels.trace.sizes, kernels.trace.timings
    takes = list[int]()
    for number, makes in enumerate(kernels.makes):
        timing = timings.get(makes[0], Timing()) if makes else Timing()
        # What a barrier cuts is written; else it is no kernel.
        read = kernels.buffers[number] if kernels.use_of(number) is not BufferUse.ALIAS else ()
        moved = sum([sizes[buffer] for buffer in read]) + kernels.written_bytes[number]
        takes.append(0 if timing.is_gather else max(moved, timing.work))
    return takes


def _exchanges(kernels: Kernels) -> dict[int, _Exchange]:
    """Returns, by kernel, the exchange of its results."""
    together: dict[int, _Exchange] = {}
    found: dict[int, _Exchange] = {}
    for number, makes in enumerate(kernels.makes):
        timing = kernels.trace.timings.get(makes[0]) if makes else None
        if timing is not None and timing.exchange:
            made = _Exchange(timing.exchange, is_gather=timing.is_gather)
            exchange = together.setdefault(timing.group, made)
            exchange.kernels.append(number)
            exchange.unread += 1
            found[number] = exchange
    return found


def _pairs(kernels: Kernels, depth: Sequence[int]) -> dict[int, _Pair]:
    """Returns, by kernel, the pair of elementwise kernels of equal bytes that read one buffer in
    the order of its elements, do not wait for each other, and wait for equally many exchanges.

    XLA makes one kernel of such siblings (multi_output_fusion.cc): an activation for a weight's
    gradient is made beside its own gradient, so that only these two are held until they are read.
    """
    sizes = kernels.trace.sizes
    readers: dict[tuple[int, int, int], list[int]] = {}
    found: dict[int, _Pair] = {}
    for number, makes in enumerate(kernels.makes):
        if kernels.use_of(number) is not BufferUse.ELEMENTWISE or len(makes) != 1:
            continue
        size = sizes[makes[0]]
        for buffer in kernels.buffers[number] if size >= _PAIRED_BYTES else ():
            if sizes[buffer] < size:
                continue
            others = readers.setdefault((buffer, size, depth[number]), [])
            for other in reversed(others):
                if number in found or number - other > _NEAR:
                    break
                if other not in found and not _waits(kernels, number, other):
                    found[number] = found[other] = _Pair()
            others.append(number)
    return found


def _waits(kernels: Kernels, number: int, other: int) -> bool:
    """Whether a kernel waits for an earlier one."""
    seen, waiting = {number}, [number]
    while waiting:
        for each in kernels.operands[waiting.pop()]:
            if each == other:
                return True
            if each > other and each not in seen:
                seen.add(each)
                waiting.append(each)
    return False


def _reduced_with(kernels: Kernels) -> dict[int, list[int]]:
    """Returns, by kernel that overwrites an operand, the earlier reductions of that operand.

    XLA fuses the two (multi_output_fusion.cc): a loss is not summed after its gradient, which is
    written over the logits.
    """
    readers: dict[int, list[int]] = {}
    for number, buffers in enumerate(kernels.buffers):
        if kernels.use_of(number) in REDUCTIONS:
            for buffer in buffers:
                readers.setdefault(buffer, []).append(number)
    found: dict[int, list[int]] = {}
    for made, values in kernels.beside.items():
        number = kernels.maker[made]
        of_each = (readers.get(kernels.buffer[value], ()) for value in values)
        read = dict.fromkeys(itertools.chain.from_iterable(of_each))
        others = [other for other in read if other < number]
        found[number] = [other for other in others if other not in kernels.operands[number]]
    return found
