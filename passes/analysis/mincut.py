"""Minimum vertex cut: which values to keep so that all that is needed can be computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

_CAPACITY_LIMIT = 2**30
"""scipy's maximum_flow takes 32-bit capacities; finite ones are scaled to sum below this."""


def minimum_vertex_cut(
    weights: Sequence[int],
    edges: Iterable[tuple[int, int]],
    sources: Iterable[int],
    sinks: Iterable[int],
    prices: Mapping[int, int] = MappingProxyType({}),
) -> frozenset[int]:
    """The set of vertices of least total weight that every path from a source to a sink meets.

    A vertex with a price can be had for it as well: it may stand on the sinks' side of the cut,
    reached through what it is made of, where price and weights together are least.

    Args:
        weights: weight of each vertex (bytes), at least 0.
        edges: pairs (from, to) of vertices.
        sources: vertices where paths begin; a source may itself be in the cut.
        sinks: vertices where paths end; likewise.
        prices: what it costs, in the unit of the weights, to make a vertex from its predecessors,
            at least 0; where it is missing making it is free. A source cannot be made.

    Of several minimum cuts it returns the one nearest the sinks, so that where nothing is gained
    nothing is recomputed. Weights are rounded up to the unit that lets their sum fit 30 bits, so a
    cut may exceed the minimum by at most one unit a vertex.

    Source: max-flow min-cut on the vertex-split graph, as in
    Hu et al., "Min-cut optimal(*) recomputation" (PyTorch AOTAutograd, 2022).
    """
    count = len(weights)
    unit = max(1, -(-2 * (sum(weights) + sum(prices.values())) // _CAPACITY_LIMIT))
    scaled = np.array([-(-weight // unit) for weight in weights], dtype=np.int64)
    priced = np.array(sorted(prices), dtype=np.int64)
    paid = np.array([-(-prices[vertex] // unit) for vertex in sorted(prices)], dtype=np.int64)
    unlimited = int(scaled.sum() + paid.sum()) + 1
    # Vertex v is split into v (in) and count + v (out); the arc between carries its weight.
    source, sink = 2 * count, 2 * count + 1
    inside = np.arange(count)
    pairs = np.array(sorted(set(edges)), dtype=np.int64).reshape(-1, 2)
    starts = np.array(sorted(set(sources)), dtype=np.int64)
    ends = np.array(sorted(set(sinks)), dtype=np.int64)
    tails = np.concatenate(
        [
            inside,
            pairs[:, 0] + count,
            np.full(len(starts), source),
            ends + count,
            np.full(len(priced), source),
        ]
    )
    heads = np.concatenate([inside + count, pairs[:, 1], starts, np.full(len(ends), sink), priced])
    without_limit = np.full(len(pairs) + len(starts) + len(ends), unlimited, dtype=np.int64)
    capacities = np.concatenate([scaled, without_limit, paid]).astype(np.int32)
    size = 2 * count + 2
    network = csr_matrix((capacities, (tails, heads)), shape=(size, size))
    flow = maximum_flow(network, source, sink).flow
    residual = network - flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    # Backward reachability from the sink in the residual graph gives the cut nearest the sink.
    reached = np.zeros(size, dtype=bool)
    reached[breadth_first_order(residual.T.tocsr(), sink, return_predecessors=False)] = True
    crossing = ~reached[:count] & reached[count : 2 * count]
    return frozenset(int(vertex) for vertex in np.flatnonzero(crossing))
