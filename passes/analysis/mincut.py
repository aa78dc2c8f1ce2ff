"""Minimum vertex cut: the values to keep so that all needed values can be computed from them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Solved = dict[object, frozenset[int]]
"""Solved cuts by their problems: equal layers have equal problems."""

CAPACITY_LIMIT = 2**30
"""scipy's maximum_flow takes 32-bit capacities; finite ones are scaled to sum below this."""


def minimum_vertex_cut(
    weights: Sequence[int],
    edges: Iterable[tuple[int, int]],
    sources: Iterable[int],
    sinks: Iterable[int],
    prices: Mapping[int, int] = MappingProxyType({}),
) -> frozenset[int]:
    """Returns the set of vertices of least total weight that every path from a source to a sink
    crosses.

    A vertex with a price may also be recomputed: it may be on the sinks' side of the cut, reached
    through its predecessors, where price and weights together are least.

    Args:
        weights: weight of each vertex (bytes), at least 0.
        edges: pairs (from, to) of vertices.
        sources: vertices where paths begin; a source may itself be in the cut.
        sinks: vertices where paths end; likewise.
        prices: the cost, in the unit of the weights, of making a vertex from its predecessors, at
            least 0; where it is missing making it is free. A source cannot be made.

    Of several minimum cuts it returns the one nearest the sinks, so that where nothing is gained
    nothing is recomputed. Weights are rounded up to the unit that lets their sum fit 30 bits, so a
    cut may exceed the minimum by at most one unit a vertex.

    Source: max-flow min-cut on the vertex-split graph, as in
    Hu et al., "Min-cut optimal(*) recomputation" (PyTorch AOTAutograd, 2022).
    """
    count = len(weights)
    unit = _unit(weights, prices)
    scaled = -(-number_array(weights) // unit)
    paid = -(-number_array(prices.values()) // unit)
    unlimited = int(scaled.sum() + paid.sum()) + 1
    # Vertex v is split into v (in) and count + v (out); the arc between carries its weight.
    source, sink = 2 * count, 2 * count + 1
    inside = np.arange(count)
    pairs = pair_array(edges)
    starts, ends, priced = map(number_array, (set(sources), set(sinks), prices))
    made = np.concatenate([priced, starts])  # of a source's arcs the last counts
    tails = np.concatenate([inside, np.full(len(made), source), pairs[:, 0] + count, ends + count])
    heads = np.concatenate([inside + count, made, pairs[:, 1], np.full(len(ends), sink)])
    capacities = np.full(len(tails), unlimited, dtype=np.int32)
    capacities[: count + len(paid)] = np.concatenate([scaled, paid])
    reached = reaching(sink, source, tails, heads, capacities)
    crossing = ~reached[:count] & reached[count : 2 * count]
    return frozenset(np.flatnonzero(crossing).tolist())


def rounding(weights: Collection[int], prices: Mapping[int, int]) -> int:
    """Returns the amount by which `minimum_vertex_cut` may exceed the minimum."""
    unit = _unit(weights, prices)
    return unit * (len(weights) + len(prices)) if unit > 1 else 0


def _unit(weights: Collection[int], prices: Mapping[int, int]) -> int:
    return max(1, -(-2 * (sum(weights) + sum(prices.values())) // CAPACITY_LIMIT))


def pair_array(pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Returns pairs of numbers as rows."""
    flat = np.fromiter(itertools.chain.from_iterable(pairs), dtype=np.int64)
    return flat.reshape(-1, 2)


def number_array(numbers: Collection[int]) -> NDArray[np.int64]:
    """Returns numbers as an array."""
    return np.fromiter(numbers, dtype=np.int64, count=len(numbers))


def reaching(
    sink: int,
    source: int,
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    capacities: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Returns the vertices from which the sink, the last one, is reached when the flow is greatest.

    The cut before them is the one nearest the sink.
    """
    # They take long to import, and most programs that import the passes cut nothing.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_flow

    size = sink + 1
    # Every arc exists in both directions, so that a flow has the structure of its network: making
    # sparse matrices of another structure takes most of the time where networks are small.
    there, back = tails * size + heads, heads * size + tails
    arcs, places = np.unique(np.concatenate([there, back]), return_inverse=True)
    forth, reverse = places[: len(there)], places[len(there) :]
    room = np.zeros(len(arcs), dtype=np.int32)
    room[forth] = capacities
    ends = (arcs % size).astype(np.int32)
    starts = np.searchsorted(arcs, np.arange(size + 1) * size).astype(np.int32)
    network = csr_matrix((room, ends, starts), shape=(size, size))
    left = room - maximum_flow(network, source, sink).flow.data
    backward = np.zeros_like(left)
    backward[forth], backward[reverse] = left[reverse], left[forth]
    reached = [False] * size
    reached[sink] = True
    waiting, to, first, is_open = [sink], ends.tolist(), starts.tolist(), (backward > 0).tolist()
    while waiting:
        vertex = waiting.pop()
        for arc in range(first[vertex], first[vertex + 1]):
            if is_open[arc] and not reached[to[arc]]:
                reached[to[arc]] = True
                waiting.append(to[arc])
    return np.array(reached, dtype=np.bool_)
