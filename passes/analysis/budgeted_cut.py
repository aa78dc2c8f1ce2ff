"""Budgeted vertex cut: the vertices to keep within a limit so that the rest is cheapest to make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .keep import KeepNetwork
from .mincut import minimum_vertex_cut

_MOST_VERTICES = 400
"""The most vertices for which the program is solved exactly, in a fraction of a second."""

_MOST_NODES = 20_000
"""The node limit of HiGHS; no time limit, so that the answer is the same on every machine."""

_TOLERANCE = 1e-6
"""The absolute error of HiGHS in a sum of shares that it keeps within a limit."""

_STEPS = 40
"""Steps of the search for the price of a byte, where the program is too large."""


def budgeted_vertex_cut(network: KeepNetwork[Any], limit: int) -> frozenset[int] | None:
    """Returns the vertices to keep, at most ``limit`` by weight, so that the rest costs least to
    make.

    Of sets for which the same is made it takes a lightest.

    Exact up to 400 vertices (a mixed-integer linear program, solved by HiGHS); of larger ones, and
    where HiGHS gives up, the best cut with one price for every byte, or with two where the network
    has parts that are not connected. None where nothing fits.
    """
    if not network.sinks:
        return frozenset()
    weights = [weight if weight < network.never else limit + 1 for weight in network.weights]
    network = replace(network, weights=weights)
    needed = network.needed()
    if len(needed) <= _MOST_VERTICES:
        found = _solve(network, limit, needed)
        if found is not None:
            return found
    return _lagrangian_cut(network, limit)


def _solve(
    network: KeepNetwork[Any], limit: int, needed: list[int], *, is_lowered: bool = False
) -> frozenset[int] | None:
    """Returns the exact answer; None where none exists, or HiGHS stops before it.

    Where HiGHS exceeds the limit by its tolerance, it runs again with a limit lower by that.

    Up to two variables for each vertex: whether it is kept, and whether it is made.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes long to import
    from scipy.sparse import csr_matrix

    weights, prices, sources = network.weights, network.prices, frozenset(network.sources)
    never_kept = _never_kept(network, needed)
    may_keep = [v for v in needed if v not in never_kept and weights[v] <= limit]
    may_make = [v for v in needed if v not in sources]
    kept_at = {vertex: column for column, vertex in enumerate(may_keep)}
    made_at = {vertex: column for column, vertex in enumerate(may_make, len(may_keep))}
    if not all(sink in kept_at or sink in made_at for sink in network.sinks):
        return None
    rows: list[tuple[int, int, float]] = []
    least: list[float] = []

    def add_row(vertex: int, bound: float) -> None:  # kept + made >= bound
        rows.extend((len(least), at[vertex], 1.0) for at in (kept_at, made_at) if vertex in at)
        least.append(bound)

    for start, end in sorted(set(network.edges)):
        if end in made_at:  # kept(start) + made(start) - made(end) >= 0
            rows.append((len(least), made_at[end], -1.0))
            add_row(start, 0.0)
    for sink in sorted(set(network.sinks)):
        add_row(sink, 1.0)
    at, column, factor = (np.array(part) for part in zip(*rows, strict=True))
    structure = csr_matrix((factor, (at, column)), shape=(len(least), len(may_keep + may_make)))
    # Shares of the whole. Where kept flags are integers only up to the tolerance, the sum is off by
    # no more than that; with more, HiGHS repairs the answer, and prints that it does.
    whole = sum(weights[vertex] for vertex in may_keep) or 1
    weight = [weights[v] / whole for v in may_keep] + [0.0] * len(may_make)
    # Shares of the largest: HiGHS has an absolute tolerance.
    highest = max((prices.get(vertex, 0) for vertex in needed), default=0) or 1
    result = milp(
        c=np.array([0.0] * len(may_keep) + [prices.get(v, 0) / highest for v in may_make]),
        integrality=np.ones(structure.shape[1]),
        bounds=Bounds(0, 1),
        constraints=(
            LinearConstraint(structure, lb=np.array(least)),
            LinearConstraint(np.array([weight]), ub=limit / whole),
        ),
        options={"mip_rel_gap": 0.0, "node_limit": _MOST_NODES},
    )
    if result.status != 0:
        return None
    kept = frozenset(v for v in may_keep if result.x[kept_at[v]] > 0.5)
    if network.weigh(kept) <= limit:
        return _without_excess(network, kept)
    less = limit - int(2 * _TOLERANCE * whole) - 1
    return None if is_lowered or less < 0 else _solve(network, less, needed, is_lowered=True)


def _never_kept(network: KeepNetwork[Any], needed: list[int]) -> set[int]:
    """Returns vertices that need not be kept: the successors of each weigh no more than it does,
    and where these are kept neither it nor they have to be made."""
    sinks, weights = frozenset(network.sinks), network.weights
    made_of: dict[int, int] = dict.fromkeys(needed, 0)
    for start, end in set(network.edges):
        if end in made_of:
            made_of[start] += weights[end]
    return {vertex for vertex, found in made_of.items() if found <= weights[vertex]} - sinks


def _without_excess(network: KeepNetwork[Any], kept: frozenset[int]) -> frozenset[int]:
    """Returns the lightest set whose price has no part that ``kept`` does not pay.

    HiGHS keeps useless vertices at random where the limit has room for them.
    """
    paid = network.made(kept)
    unpaid = [vertex for vertex, price in network.prices.items() if price and vertex not in paid]
    lightest = minimum_vertex_cut(
        network.weights, network.edges, [*network.sources, *unpaid], network.sinks
    )
    return lightest if network.weigh(lightest) <= network.weigh(kept) else kept


def _lagrangian_cut(network: KeepNetwork[Any], limit: int) -> frozenset[int] | None:
    """Returns the cut at the highest price of recomputation, against a byte's, whose weight fits.

    Where parts of the network are not connected, some of them may be cut at a price above it.
    """
    weights, prices = network.weights, network.prices
    bound = 1 + sum(weights[sink] for sink in network.sinks)

    def cut(scale: float) -> frozenset[int]:
        scaled = {vertex: min(int(price * scale), bound) for vertex, price in prices.items()}
        return minimum_vertex_cut(weights, network.edges, network.sources, network.sinks, scaled)

    highest = max(prices.values(), default=0) or 1
    low, high = 1.0 / highest, float(bound)
    best, beyond = cut(0.0), cut(high)
    if network.weigh(best) > limit:
        return None
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        kept = cut(middle)
        if network.weigh(kept) <= limit:
            low = middle
            if network.price_of(kept) <= network.price_of(best):
                best = kept
        else:
            high, beyond = middle, kept
    return _mixed(network, limit, best, beyond)


def _mixed(
    network: KeepNetwork[Any], limit: int, within: frozenset[int], beyond: frozenset[int]
) -> frozenset[int]:
    """Returns the set ``within``, with parts of ``beyond`` where these are not connected and it
    fits.

    The part that saves most is taken first.
    """
    kept, price = within, network.price_of(within)
    parts = [part for part in _unconnected(network) if within & part != beyond & part]
    while True:
        better: list[tuple[int, int, frozenset[int]]] = []
        for number, part in enumerate(parts):
            mixed = (kept - part) | (beyond & part)
            if mixed != kept and network.weigh(mixed) <= limit:
                better.append((network.price_of(mixed), number, mixed))
        least = min(better, default=None, key=lambda one: one[:2])
        if least is None or least[0] >= price:
            return kept
        price, _, kept = least


def _unconnected(network: KeepNetwork[Any]) -> list[frozenset[int]]:
    """Returns the vertices of each part of the network that no edge connects with another one."""
    from scipy.sparse import csr_matrix  # takes long to import
    from scipy.sparse.csgraph import connected_components

    count = len(network.weights)
    starts, ends = np.array(network.edges, dtype=int).reshape(-1, 2).T
    graph = csr_matrix((np.ones(len(starts)), (starts, ends)), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    parts: dict[int, list[int]] = {}
    for vertex, label in enumerate(labels):
        parts.setdefault(int(label), []).append(vertex)
    return [frozenset(part) for part in parts.values()]
