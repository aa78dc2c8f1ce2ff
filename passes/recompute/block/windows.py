"""Divides the code after the borders of a block into windows, and selects the values to save so
that each window can recompute the values that it reads.

A value is recomputed at most once in a window, and only saved values live across windows. The
length of the windows therefore bounds the memory of recomputed values. Each window has a minimum
cut of its own. The windows are solved from the one that runs last (in a backward pass the first
layers) to the one that runs first; a value that one window saves costs those before it nothing.

*Segments* are the parts of the code before a border that the windows after it mirror. A backward
pass reads the values of the last layer first. The windows after a border therefore go backwards
through the code before it, one segment after the other. A window that recomputes no more than its
segment starts from what the segment reads, such as a layer's input, and holds no more than one
segment's values at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...analysis.keep import KeepNetwork
from ...analysis.mincut import Solved
from ...analysis.pricing import Rates
from .values import ForwardValues, Window

_MOST_TRIED = 128
"""The most positions that are tried as the end of a window."""

Bytes = NDArray[np.int64]


class Mirror:
    """Finds where windows end, and where their segments start, so that few bytes cross both."""

    def __init__(self, forward: ForwardValues, code: range) -> None:
        """``code`` is the code after the border."""
        self._border = code.start
        graph, weights = forward.graph, forward.weights
        reads = forward.reads_within(code)
        self._made = np.array([max(graph.producers[value], 0) for value, _, _ in reads], np.int64)
        self._last = np.array([last for _, _, last in reads], np.int64)
        self._weights = np.array([weights[value] for value, _, _ in reads], np.int64)
        made = self._made_before(np.ones(len(reads), np.bool_))
        self._otherwise = (made[-1] - made) + _alive(forward, code.start)
        """By position, the bytes on the wrong side where every read is late."""
        self._found: dict[tuple[int, int], tuple[int, int]] = {}

    def bound(self, ends: range, aim: int, stop: int, crossing: Sequence[int]) -> int:
        """Returns the best end of a window, by the bytes read ``crossing`` each position.

        ``stop`` is where the segment of the window stops.
        """
        tried = ends[:: max(1, -(-len(ends) // _MOST_TRIED))]
        return min(
            tried,
            key=lambda end: (crossing[end - self._border] + self._at(end, stop)[1], abs(end - aim)),
        )

    def start(self, end: int, stop: int) -> int:
        """Returns where the segment starts of a window that ends here."""
        return self._at(end, stop)[0]

    def _at(self, end: int, stop: int) -> tuple[int, int]:
        """Returns the best start of a segment, and the bytes on the wrong side of it.

        Those are bytes that are made before the start and read before the end alone, bytes that are
        made after the start and read after the end, and bytes from before the start that the code
        up to the border reads after it.
        """
        if (end, stop) not in self._found:
            before = self._made_before(self._last < end)
            # Among early reads, bytes made after the start are right, and those before are wrong.
            wrong = (2 * before - before[-1] + self._otherwise)[: stop + 1]
            start = int(len(wrong) - 1 - np.argmin(wrong[::-1]))
            self._found[end, stop] = start, int(wrong[start])
        return self._found[end, stop]

    def _made_before(self, chosen: NDArray[np.bool_]) -> Bytes:
        """Returns, by position up to the border, the chosen bytes that are made before it."""
        found = np.bincount(
            self._made[chosen] + 1, self._weights[chosen], minlength=self._border + 1
        )
        return np.cumsum(found.astype(np.int64))[: self._border + 1]


def _alive(forward: ForwardValues, border: int) -> Bytes:
    """Returns, by position up to the border, bytes that the code so far reads from before it."""
    graph = forward.graph
    change = np.zeros(border + 2, np.int64)
    for value, producer in enumerate(graph.producers):
        if 0 <= producer < border and forward.weights[value] and not forward.constant[value]:
            last = max((user for user in graph.users[value] if user < border), default=producer)
            change[producer + 1] += forward.weights[value]
            change[last + 1] -= forward.weights[value]
    return np.cumsum(change)[: border + 1]


_SMALLEST_SEARCH, _SEARCH_SHARE = 256, 4
"""The number of forward values that the cut of a window may contain: `_SMALLEST_SEARCH`, or
`_SEARCH_SHARE` times the window's reads if that is more. Values beyond can only be saved. This
bounds the planning time, and keeps a value from being recomputed in many windows."""

_LOSS_LENGTH = 48
"""The approximate length of the loss's window in operations."""


def split(
    forward: ForwardValues,
    length: int,
    *,
    loss_apart: bool = False,
    segmented: bool = False,
    nested: bool = False,
) -> list[Window]:
    """Divides the block, from its border on, into windows of about ``length`` operations.

    A window ends where the fewest bytes of values from before the border are read both before and
    after the end.

    Args:
      length: the approximate number of operations in a window.
      length: about how many operations a window has.
      loss_apart: the first window is short: it covers the backward pass of the loss, whose forward
        values have short live ranges.
      segmented: a window recomputes no more than the part of the code before the border that
        mirrors it; values that this part reads from before itself are saved.
      nested: there are windows after each of the block's borders, not only after the highest one.
    """
    borders, end = forward.borders, len(forward.graph.ops)
    starts = borders.positions if nested else (borders.highest,)
    return [
        window
        for start, stop in pairwise([*starts, end])
        for window in _windows(forward, range(start, stop), length, loss_apart, segmented)
    ]


def _windows(
    forward: ForwardValues, code: range, length: int, loss_apart: bool, segmented: bool
) -> list[Window]:
    """Returns the windows of the code after one border."""
    crossing = _crossing(forward, code)
    mirror = Mirror(forward, code) if segmented else None
    bounds, starts = [code.start], [code.start]
    ahead = min(length, _LOSS_LENGTH) if loss_apart else length
    while code.stop - bounds[-1] > 3 * ahead // 2:
        ends = range(bounds[-1] + max(ahead // 2, 1), bounds[-1] + 3 * ahead // 2 + 1)
        aim = bounds[-1] + ahead
        if mirror is None:
            bounds.append(min(ends, key=lambda p: (crossing[p - code.start], abs(p - aim), p)))
        else:
            bounds.append(mirror.bound(ends, aim, starts[-1], crossing))
            starts.append(mirror.start(bounds[-1], starts[-1]))
        ahead = length
    windows = [range(first, stop) for first, stop in pairwise([*bounds, code.stop])]
    if mirror is None:
        return [Window(window, range(code.start)) for window in windows]
    return [
        Window(window, range(start, code.start), before)
        for window, start, before in zip(
            windows, [*starts[1:], 0], [range(code.start, code.start), *windows], strict=False
        )
    ]


def _crossing(forward: ForwardValues, code: range) -> list[int]:
    """Returns, by position, bytes from before the code that are read before and at or after it."""
    change = [0] * (len(code) + 1)
    for value, first, last in forward.reads_within(code):
        change[first + 1 - code.start] += forward.weights[value]
        change[last + 1 - code.start] -= forward.weights[value]
    return list(itertools.accumulate(change))


@dataclass(frozen=True)
class PriceSchedule:
    """Rates by the position of a value's producer: ``early``, and ``late`` from ``border`` on."""

    early: Rates
    late: Rates
    border: int

    @classmethod
    def flat(cls, rates: Rates) -> PriceSchedule:
        """Returns a schedule with the same rates at all positions."""
        return cls(rates, rates, 0)

    def prices(self, forward: ForwardValues) -> list[int]:
        """Returns, by value, the price of recomputing it in bytes."""
        late = forward.prices(self.late)
        if self.border == 0:
            return late
        producers, early = forward.graph.producers, forward.prices(self.early)
        return [
            late[value] if producer >= self.border else early[value]
            for value, producer in enumerate(producers)
        ]


def keep(
    forward: ForwardValues,
    windows: Sequence[Window],
    price_schedules: Sequence[PriceSchedule],
    solved: Solved | None = None,
) -> tuple[frozenset[int], ...]:
    """Returns, by window, the values that are saved for it and for those that run later.

    ``price_schedules`` has the price schedule of each window; ``solved`` caches cuts, and new ones
    are added.
    """
    kept: frozenset[int] = frozenset()
    by_window: list[frozenset[int]] = []
    solved = {} if solved is None else solved
    prices = {
        price_schedule: price_schedule.prices(forward)
        for price_schedule in dict.fromkeys(price_schedules)
    }
    for window, price_schedule in reversed(list(zip(windows, price_schedules, strict=True))):
        network = _network(forward, window, prices[price_schedule], kept)
        kept |= network.values_at(network.lightest(solved))
        by_window.append(kept)
    return tuple(reversed(by_window))


def _network(
    forward: ForwardValues, window: Window, price: Sequence[int], kept: frozenset[int]
) -> KeepNetwork[int]:
    """Returns a window's cut problem, given the values saved for others.

    Its values are those from which its sinks are computed, numbered from the sinks on: equal layers
    then have equal problems. Each has a price of its own, a share of that of its operation.
    """
    sinks = forward.sinks_of(window)
    most = max(_SMALLEST_SEARCH, _SEARCH_SHARE * len(sinks))
    if window.is_segment:
        most = len(forward.weights)  # the segment bounds the search
    made_of, weights, recomputable = forward.made_of, forward.weights, forward.recomputable
    producers, first, stop = forward.graph.producers, window.made.start, window.made.stop
    values = list(sinks)
    vertices = dict(zip(sinks, range(len(sinks)), strict=True))
    sources: set[int] = set()
    edges: list[tuple[int, int]] = []
    prices: dict[int, int] = {}
    for number, value in enumerate(values):  # grows while it is walked
        if not (
            number < most
            and recomputable[value]
            and first <= producers[value] < stop
            and value not in kept
            and price[value] < weights[value]  # else no cut makes it: it costs less to keep
        ):
            sources.add(number)
            continue
        prices[number] = price[value]
        for read in made_of[value]:
            source = vertices.get(read)
            if source is None:
                source = vertices[read] = len(values)
                values.append(read)
            edges.append((source, number))
    saved = [0 if value in kept else weights[value] for value in values]
    wanted = list(range(len(sinks)))
    return KeepNetwork(saved, edges, sources, wanted, prices, vertices, never=1 + sum(saved))
