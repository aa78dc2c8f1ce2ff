"""Segments: which part of the code before a border mirrors which window behind it.

A backward pass reads the values of the last layer first. The windows behind a border therefore go
backwards through the code before it, one segment after the other. A window that recomputes no more
than its segment starts from what the segment reads, such as a layer's input, and holds no more than
one segment's values at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .values import ForwardValues

_MOST_TRIED = 128
"""The most positions that are tried as the end of a window."""

Bytes = NDArray[np.int64]


class Mirror:
    """Finds where windows end, and where their segments start, so that few bytes fit neither."""

    def __init__(self, forward: ForwardValues, code: range) -> None:
        """``code`` is what is behind the border."""
        self._border = code.start
        graph, weights = forward.graph, forward.weights
        reads = forward.reads_within(code)
        self._made = np.array([max(graph.producers[value], 0) for value, _, _ in reads], np.int64)
        self._last = np.array([last for _, _, last in reads], np.int64)
        self._weights = np.array([weights[value] for value, _, _ in reads], np.int64)
        self._alive = _alive(forward, code.start)
        self._found: dict[tuple[int, int], tuple[int, int]] = {}

    def bound(self, ends: range, aim: int, stop: int, crossing: Sequence[int]) -> int:
        """Where a window ends best, by the bytes that the code reads ``crossing`` each position.

        ``stop`` is where the segment of the window stops.
        """
        tried = ends[:: max(1, -(-len(ends) // _MOST_TRIED))]
        return min(
            tried,
            key=lambda end: (crossing[end - self._border] + self._at(end, stop)[1], abs(end - aim)),
        )

    def start(self, end: int, stop: int) -> int:
        """Where the segment starts of a window that ends here."""
        return self._at(end, stop)[0]

    def _at(self, end: int, stop: int) -> tuple[int, int]:
        """The best start of a segment, and the bytes on the wrong side of it.

        Those are bytes that are made before the start and read before the end alone, and that are
        made behind the start and read behind the end; and bytes from before the start that the code
        up to the border reads behind it.
        """
        if (end, stop) not in self._found:
            early = self._last < end
            before = self._made_before(early)
            late = self._made_before(~early)
            wrong = (before + (late[-1] - late) + self._alive)[: stop + 1]
            start = int(len(wrong) - 1 - np.argmin(wrong[::-1]))
            self._found[end, stop] = start, int(wrong[start])
        return self._found[end, stop]

    def _made_before(self, chosen: NDArray[np.bool_]) -> Bytes:
        """By position up to the border, the chosen bytes that are made before it."""
        found = np.bincount(
            self._made[chosen] + 1, self._weights[chosen], minlength=self._border + 1
        )
        return np.cumsum(found.astype(np.int64))[: self._border + 1]


def _alive(forward: ForwardValues, border: int) -> Bytes:
    """By position up to the border, the bytes that the code up to there reads from before it."""
    graph = forward.graph
    change = np.zeros(border + 2, np.int64)
    for value, producer in enumerate(graph.producers):
        if 0 <= producer < border and forward.weights[value] and not forward.constant[value]:
            last = max((user for user in graph.users[value] if user < border), default=producer)
            change[producer + 1] += forward.weights[value]
            change[last + 1] -= forward.weights[value]
    return np.cumsum(change)[: border + 1]
