"""Finds the values in memory in each stretch of a curve, at the instruction of its maximum."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hloom.passes.analysis.memory_model.profile import LiveBuffer, MemoryProfile
from hloom.show import units
from hloom.xla.live_ranges import LiveRanges
from hloom_tools.document.sources import Named, SourcePlace, Sources

MOST_STRETCHES = 80
"""The most stretches of a curve, of equal width: narrower ones are hard to point at."""

_MOST_VALUES = 5
_MOST_SPIKES = 6


@dataclass(frozen=True)
class AliveRow:
    """The values of one line that live at one time."""

    value: Named
    count: int

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all of them."""
        return self.value.size_bytes * self.count


@dataclass(frozen=True)
class Alive:
    """The values that live at one time, by one curve.

    Attributes:
      curve: the curve's name, e.g. "before"; empty where only one is drawn.
      bytes: the bytes in memory at the time.
      rows: the largest values; `others` counts the rest.
    """

    curve: str
    bytes: int
    rows: tuple[AliveRow, ...]
    others: int


@dataclass(frozen=True)
class Tip:
    """The tip of a stretch of a curve, which starts at an instruction and has a width."""

    title: str
    begin: int
    width: int
    alive: tuple[Alive, ...]

    @property
    def bytes(self) -> int:
        """Returns the most bytes in memory in this stretch."""
        return max(each.bytes for each in self.alive)


@dataclass(frozen=True)
class _Span:
    """A value's live range, both ends included."""

    start: int
    end: int
    value: Named


@dataclass(frozen=True)
class _Curve:
    """A step curve: each size holds from its time until the next one, the last up to the end."""

    name: str
    end: int
    changes: Sequence[tuple[int, int]]
    spans: Sequence[_Span]

    def highest(self, begin: int, end: int) -> tuple[int, int]:
        """Returns the time of the maximum in a stretch, and the maximum."""
        first = bisect_right(self.changes, begin, key=lambda change: change[0])
        last = bisect_left(self.changes, end, key=lambda change: change[0])
        at_begin = [(begin, self.changes[first - 1][1])] if first else [(begin, 0)]
        return max([*at_begin, *self.changes[first:last]], key=lambda change: change[1])


def tips_of_xla(ranges: LiveRanges) -> tuple[Tip, ...]:
    """Of the temporaries in XLA's schedule."""
    curve = _curve_of_xla("", ranges)
    return tuple(_tips(curve.end, [curve], "instruction"))


def tips_of_two(first: LiveRanges, second: LiveRanges) -> tuple[Tip, ...]:
    """Of the temporaries in XLA's schedules of two compiles, "A" and "B"."""
    curves = [_curve_of_xla(name, each) for name, each in (("A", first), ("B", second))]
    return tuple(_tips(max(each.end for each in curves), curves, "instruction"))


def _curve_of_xla(name: str, ranges: LiveRanges) -> _Curve:
    temps = (each for each in ranges.values if each.is_temporary)
    largest = sorted(temps, key=lambda each: -each.bytes)
    named = Sources({}).described  # A line's code is not shown in a tip.
    spans = [_Span(each.start, each.end, named(each.described, each.copy_of)) for each in largest]
    return _Curve(name, ranges.instructions, ranges.curve, spans)


def tips_of_model(before: MemoryProfile, after: MemoryProfile | None) -> tuple[Tip, ...]:
    """Returns the tips of the program before and after the passes, by hloom's model."""
    profiles = [("", before)] if after is None else [("before", before), ("after", after)]
    curves = [
        _Curve(
            name,
            len(each.points),
            [(time, each.base_bytes + point.bytes) for time, point in enumerate(each.points)],
            [_Span(one.start, one.end, _named_by_model(one)) for one in each.buffers],
        )
        for name, each in profiles
    ]
    return tuple(_tips(max(each.end for each in curves), curves, "kernel"))


def spikes(tips: Sequence[Tip]) -> tuple[Tip, ...]:
    """Returns the highest local maxima, in order."""
    levels = [each.bytes for each in tips]
    rising = [
        tip
        for before, tip, after in zip([0, *levels], tips, [*levels[1:], 0], strict=False)
        if tip.bytes > before and tip.bytes >= after
    ]
    highest = heapq.nlargest(_MOST_SPIKES, rising, key=lambda tip: tip.bytes)
    return tuple(sorted(highest, key=lambda tip: tip.begin))


def _tips(count: int, curves: Sequence[_Curve], noun: str) -> Iterator[Tip]:
    width = max(1, -(-count // MOST_STRETCHES))
    living = [_Living(each.spans) for each in curves]
    for begin in range(0, count, width):
        end = min(begin + width, count)
        highest = [each.highest(begin, end) for each in curves]
        found = [
            there.at(time, curve.name, size_bytes)
            for curve, there, (time, size_bytes) in zip(curves, living, highest, strict=True)
            if begin < curve.end
        ]
        title = f"{noun} {begin}" if width == 1 else f"{noun}s {begin} to {end - 1}"
        if found:
            yield Tip(f"{title} of {count}", begin, end - begin, tuple(found))


class _Living:
    """Finds the values that live at a time, for ascending times."""

    def __init__(self, spans: Iterable[_Span]) -> None:
        self._coming = sorted(spans, key=lambda span: -span.start)
        self._there: list[_Span] = []

    def at(self, time: int, name: str, size_bytes: int) -> Alive:
        """Returns the values that live at a time."""
        while self._coming and self._coming[-1].start <= time:
            self._there.append(self._coming.pop())
        self._there = [span for span in self._there if span.end >= time]
        counts = Counter(span.value for span in self._there)
        rows = [AliveRow(value, count) for value, count in counts.items()]
        largest = heapq.nlargest(_MOST_VALUES, rows, key=lambda row: row.size_bytes)
        return Alive(name, size_bytes, tuple(largest), len(rows) - len(largest))


def _named_by_model(each: LiveBuffer) -> Named:
    type_ = units.short_type(each.type)
    return Named(each.name, SourcePlace(each.line), type_, each.bytes, stacked=each.stacked)
