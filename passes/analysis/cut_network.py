"""Minimum cuts of arcs, in a network of which many are computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .mincut import CAPACITY_LIMIT, number_array, pair_array, reaching


class CutNetwork:
    """A network of which many minimum cuts of arcs are computed."""

    def __init__(self, count: int, arcs: Sequence[tuple[int, int, int | None]]) -> None:
        """``count`` is the number of vertices; arcs are (from, to, capacity).

        An arc of capacity None is in no cut. Other capacities are rounded up like the weights of
        `minimum_vertex_cut`.
        """
        self._count = count
        limited = [capacity for _, _, capacity in arcs if capacity is not None]
        unit = max(1, -(-2 * sum(limited) // CAPACITY_LIMIT))
        self._unlimited = sum(-(-capacity // unit) for capacity in limited) + 1
        self._ends = pair_array((start, end) for start, end, _ in arcs)
        self._capacities = number_array(
            [self._unlimited if each is None else -(-each // unit) for _, _, each in arcs]
        ).astype(np.int32)

    def cut(self, sources: Iterable[int], sinks: Iterable[int]) -> frozenset[int]:
        """Returns the vertices on the sinks' side of the cut of least total capacity.

        Of several minimum cuts it is the one nearest the sinks. A source that is a sink, or reaches
        one by arcs that no cut has, is a mistake that the caller sees by such an arc between sides.
        """
        source, sink = self._count, self._count + 1
        added = pair_array([(source, each) for each in sorted(set(sources))])
        added = np.concatenate([added, pair_array([(each, sink) for each in sorted(set(sinks))])])
        ends = np.concatenate([self._ends, added])
        unlimited = np.full(len(added), self._unlimited, dtype=np.int32)
        capacities = np.concatenate([self._capacities, unlimited])
        reached = reaching(sink, source, ends[:, 0], ends[:, 1], capacities)
        return frozenset(np.flatnonzero(reached[: self._count]).tolist())
