"""Budgeted vertex cut: the vertices to keep within a limit so that the rest is cheapest to make."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .keep import KeepNetwork
from .mincut import minimum_vertex_cut
from .reach import reached

_MOST_VERTICES = 400
"""The most vertices for which the program is solved exactly, in a fraction of a second."""

_MOST_NODES = 20_000
"""The node limit of HiGHS, and the most sets that are compared before it is asked, in some
hundredths of a second; no time limit, so that the answer is the same on every machine."""

_TOLERANCE = 1e-6
"""The absolute error of HiGHS in a sum of shares that it keeps within a limit."""

_STEPS = 40
"""Steps of the search for the price of a byte, where the program is too large."""

_Kept = tuple[int, int, int]
"""The weight of some vertices that are kept, the price of what is made, and their bits."""


class CheapestSets:
    """The sets of vertices to keep of which none is both heavier and dearer than another.

    Vertices are decided from the sinks back. Of two beginnings that want the same vertices the
    heavier one goes on only where it is cheaper, so that the work grows with the number of vertices
    wanted at one time. What weighs nothing is kept, and belongs to no part.
    """

    def __init__(self, network: KeepNetwork[Any], most: int = _MOST_NODES) -> None:
        """At most so many sets are compared."""
        self._network, self._left, self._best = network, most, [(0, 0, 0)]
        self._sinks, self._never_kept = frozenset(network.sinks), _never_kept(network)
        wanted = (sink for sink in self._sinks if network.weights[sink])
        self._reads = {vertex: self._read_by(vertex) for vertex in reached(wanted, self._read_by)}
        for order in self._orders():
            found = self._sets_of(order)
            self._left -= len(self._best) * len(found)
            if not self.are_known:
                break
            self._best = _undominated(
                [(w + x, p + q, a | b) for w, p, a in self._best for x, q, b in found]
            )

    @property
    def are_known(self) -> bool:
        """Whether there were few enough sets to compare."""
        return self._left >= 0

    def within(self, limit: int) -> frozenset[int] | None:
        """Returns the cheapest set of at most this weight, a lightest one of those; None where none
        is as light."""
        network, place = self._network, bisect_right(self._best, limit, key=lambda one: one[0])
        if not place:
            return None
        bits = self._best[place - 1][2]
        kept = {v for v, weight in enumerate(network.weights) if not weight or bits >> v & 1}
        made = network.made(frozenset(kept))
        return self._sinks.union(v for v, end in network.edges if end in made).intersection(kept)

    def _read_by(self, vertex: int) -> list[int]:
        """Returns what a vertex is made from and that weighs anything; nothing if it cannot be."""
        network = self._network
        reads = () if vertex in network.sources else network.made_from.get(vertex, ())
        return sorted({read for read in reads if network.weights[read]})

    def _orders(self) -> Iterator[list[int]]:
        """Yields the vertices of each part, each behind those that are made from it."""
        edges = [(read, vertex) for vertex, reads in self._reads.items() for read in reads]
        left = Counter(read for read, _ in edges)
        for part in _parts(edges, self._reads):
            ready, order = sorted(part - left.keys()), list[int]()
            while ready:
                order.append(ready.pop())
                for read in self._reads[order[-1]]:
                    left[read] -= 1
                    if not left[read]:
                        ready.append(read)
            yield order

    def _sets_of(self, order: Sequence[int]) -> list[_Kept]:
        network, place = self._network, {vertex: at for at, vertex in enumerate(order)}
        waiting: list[defaultdict[int, list[_Kept]]] = [defaultdict(list) for _ in (*order, None)]
        """By the place of the first vertex that is wanted, the places of all, as bits."""

        def put(wanted: int, sets: list[_Kept]) -> None:
            waiting[(wanted & -wanted).bit_length() - 1][wanted] += sets

        put(sum(1 << place[vertex] for vertex in self._sinks.intersection(order)), [(0, 0, 0)])
        for at, vertex in enumerate(order):
            weight, price = network.weights[vertex], network.prices.get(vertex, 0)
            reads = sum(1 << place[read] for read in self._reads[vertex])
            for wanted, found in waiting[at].items():
                sets, rest = _undominated(found), wanted ^ 1 << at
                self._left -= len(sets)
                if not self.are_known:
                    return []
                if weight < network.never and vertex not in self._never_kept:
                    put(rest, [(w + weight, p, kept | 1 << vertex) for w, p, kept in sets])
                if vertex not in network.sources:
                    put(rest | reads, [(w, p + price, kept) for w, p, kept in sets])
        return _undominated(waiting[-1][0])


def budgeted_vertex_cut(
    network: KeepNetwork[Any], limit: int, cheapest: CheapestSets | None = None
) -> frozenset[int] | None:
    """Returns the vertices to keep, at most ``limit`` by weight, so that the rest costs least to
    make.

    Of sets for which the same is made it takes a lightest.

    Exact where the network's ``cheapest`` sets are known, and up to 400 vertices (a mixed-integer
    linear program, solved by HiGHS); of larger ones, and where HiGHS gives up, the best cut with
    one price for every byte, or with two where the network has parts that are not connected. None
    where nothing fits.
    """
    if not network.sinks:
        return frozenset()
    cheapest = cheapest or CheapestSets(network)
    if cheapest.are_known:
        return cheapest.within(limit)
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
    useless = _never_kept(network)
    may_keep = [v for v in needed if v not in useless and weights[v] <= limit]
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


def _never_kept(network: KeepNetwork[Any]) -> set[int]:
    """Returns vertices that need not be kept: what is made from each weighs no more than it does,
    and where that is kept neither it nor they have to be made."""
    made_of = dict.fromkeys(network.needed(), 0)
    for start, end in set(network.edges):
        if end in made_of:
            made_of[start] += network.weights[end]
    light = {vertex for vertex, found in made_of.items() if found <= network.weights[vertex]}
    return light.difference(network.sinks)


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
    found = _parts(network.edges, range(len(network.weights)))
    parts = [part for part in found if within & part != beyond & part]
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


def _parts(edges: Iterable[tuple[int, int]], vertices: Iterable[int]) -> Iterator[set[int]]:
    """Yields the vertices of each part of a network that no edge connects with another one."""
    around: defaultdict[int, list[int]] = defaultdict(list)
    for start, end in edges:
        around[start].append(end)
        around[end].append(start)
    found: set[int] = set()
    for vertex in vertices:
        if vertex not in found:
            part = reached([vertex], around.__getitem__)
            yield part
            found |= part


def _undominated(sets: list[_Kept]) -> list[_Kept]:
    """Returns the sets that are cheaper than all lighter ones, the lightest first."""
    found: list[_Kept] = []
    for each in sorted(sets):
        if not found or each[1] < found[-1][1]:
            found.append(each)
    return found
