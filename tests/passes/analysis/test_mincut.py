"""Minimum cuts, and cheapest ones within a limit, on graphs: beside all that there are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import milp

from hloom.passes.analysis.budgeted_cut import CheapestSets, budgeted_vertex_cut
from hloom.passes.analysis.keep import KeepNetwork
from hloom.passes.analysis.mincut import minimum_vertex_cut

# Minimum cuts.

Graph = tuple[list[int], list[tuple[int, int]], list[int], list[int]]


@st.composite
def graphs(draw: st.DrawFn, weights: st.SearchStrategy[int]) -> Graph:
    """Weights, edges of a random acyclic graph of up to 8 vertices, sources and sinks."""
    count = draw(st.integers(1, 8))
    vertices = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(vertices, vertices), max_size=20))
    edges = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    ends = st.lists(vertices, max_size=3)
    all_weights = draw(st.lists(weights, min_size=count, max_size=count))
    return all_weights, edges, draw(ends), draw(ends)


def reachable(
    edges: Iterable[tuple[int, int]], starts: Iterable[int], avoided: Iterable[int]
) -> set[int]:
    """The vertices that paths from ``starts`` come to without meeting an avoided one."""
    blocked = set(avoided)
    found = set(starts) - blocked
    for tail, head in sorted(edges):  # tails before heads: in the graphs here they are smaller
        if tail in found and head not in blocked:
            found.add(head)
    return found


def optimal_cuts(graph: Graph) -> tuple[int, list[frozenset[int]]]:
    """The least weight of a cut and every cut of that weight, by trying all sets of vertices."""
    weights, edges, sources, sinks = graph
    vertices = range(len(weights))
    cuts = [
        frozenset(chosen)
        for size in range(len(weights) + 1)
        for chosen in itertools.combinations(vertices, size)
        if not reachable(edges, sources, chosen) & set(sinks)
    ]
    least = min(sum(weights[v] for v in cut) for cut in cuts)
    return least, [cut for cut in cuts if sum(weights[v] for v in cut) == least]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(graphs(st.integers(0, 4)))
def test_cuts_are_minimal_and_nearest_the_sinks(graph: Graph) -> None:
    weights, edges, sources, sinks = graph
    cut = minimum_vertex_cut(weights, edges, sources, sinks)
    least, cuts = optimal_cuts(graph)
    assert not reachable(edges, sources, cut) & set(sinks)
    assert sum(weights[v] for v in cut) == least
    for other in cuts:  # none stands nearer: it is met on the way to ours
        assert not reachable(edges, sources, other) & cut


@settings(max_examples=100, deadline=None, derandomize=True)
@given(graphs(st.integers(0, 2**50)))
def test_cuts_of_huge_weights_are_off_by_a_unit_a_vertex(graph: Graph) -> None:
    weights, edges, sources, sinks = graph
    cut = minimum_vertex_cut(weights, edges, sources, sinks)
    assert not reachable(edges, sources, cut) & set(sinks)
    unit = -(-2 * sum(weights) // 2**30)
    assert sum(weights[v] for v in cut) <= optimal_cuts(graph)[0] + unit * len(weights)


def test_weights_that_do_not_fit_32_bits() -> None:
    """They are scaled, but differences that matter show."""
    weights = [2**40 + 2**20, 2**40, 2**40 + 2**20]
    assert minimum_vertex_cut(weights, [(0, 1), (1, 2)], [0], [2]) == {1}


@pytest.mark.parametrize(("sources", "sinks"), [([], [0]), ([0], []), ([], [])])
def test_nothing_to_cut(sources: list[int], sinks: list[int]) -> None:
    assert minimum_vertex_cut([5, 5], [], sources, sinks) == frozenset()


def test_a_source_that_is_a_sink_is_cut() -> None:
    assert minimum_vertex_cut([5, 5], [(0, 1)], [0], [0, 1]) == {0}


# Cuts within a limit.


def _least(network: KeepNetwork[int], limit: int) -> tuple[int, int] | None:
    """Price and weight of the best set, by trying all."""
    best: tuple[int, int] | None = None
    for chosen in itertools.product((False, True), repeat=len(network.weights)):
        kept = frozenset(vertex for vertex, taken in enumerate(chosen) if taken)
        weight = sum(network.weights[vertex] for vertex in kept)
        made: set[int] = set()
        waiting = list(network.sinks)
        while waiting:
            vertex = waiting.pop()
            if vertex not in kept and vertex not in made:
                made.add(vertex)
                waiting += [start for start, end in network.edges if end == vertex]
        if weight > limit or made & set(network.sources):
            continue
        found = (sum(network.prices.get(vertex, 0) for vertex in made), weight)
        best = found if best is None else min(best, found)
    return best


@pytest.mark.parametrize("most", [0, 20_000])  # by HiGHS; all sets compared
@pytest.mark.parametrize("seed", range(40))
def test_the_least_price_within_a_limit(seed: int, most: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 9)
    weights = [draw.randint(0, 9) * 1000 for _ in range(count)]
    edges = [(a, b) for b in range(count) for a in range(b) if draw.random() < 0.35]
    made_of = {end for _, end in edges}
    sources = [v for v in range(count) if v not in made_of or draw.random() < 0.1]
    sinks = draw.sample(range(count), draw.randint(1, min(3, count)))
    prices = {v: draw.randint(0, 20) * 10 for v in range(count) if v not in sources}
    network = KeepNetwork[int](weights, edges, set(sources), sinks, prices)
    for limit in (0, sum(weights) // 4, sum(weights) // 2, sum(weights)):
        wanted = _least(network, limit)
        kept = budgeted_vertex_cut(network, limit, CheapestSets(network, most))
        if wanted is None:
            assert kept is None
        else:
            assert kept is not None
            assert (network.price_of(kept), network.weigh(kept)) == wanted


def test_sets_are_compared_where_few_vertices_are_wanted_at_one_time() -> None:
    """In a long network, for all limits at once; and not where each set is of use."""
    draw, count = random.Random(0), 500
    edges = [(draw.randint(max(0, b - 3), b - 1), b) for b in range(1, count) for _ in range(2)]
    weights, prices = ([draw.randint(0, 9) for _ in range(count)] for _ in range(2))
    sinks = draw.sample(range(1, count), count // 4)
    network = KeepNetwork[int](weights, edges, {0}, sinks, dict(enumerate(prices)), never=100)
    cheapest = CheapestSets(network, 10**6)
    assert cheapest.are_known
    within = {limit: cheapest.within(limit) for limit in range(0, sum(weights), 50)}
    prices = [network.price_of(kept) for kept in within.values() if kept is not None]
    assert all(network.weigh(kept) <= limit for limit, kept in within.items() if kept is not None)
    assert prices[0] > prices[-1] == 0
    powers = [1 << vertex for vertex in range(40)]
    network = KeepNetwork[int](powers, [], set(), [*range(40)], dict(enumerate(powers)))
    assert not CheapestSets(network).are_known


def test_small_values_beside_large_ones_are_not_kept_for_nothing() -> None:
    """Constants of some bytes beside stacks: less than what HiGHS tells apart."""
    for seed in range(40):
        draw = random.Random(seed)
        count = 16
        weights = [draw.choice((4, 4, 8, 10**9, 3 * 10**9)) for _ in range(count)]
        edges = [(a, b) for b in range(count) for a in range(b) if draw.random() < 0.2]
        sources = [v for v in range(count) if draw.random() < 0.15]
        sinks = draw.sample(range(count), 6)
        prices = {v: draw.randint(1, 20) for v in range(count) if weights[v] > 8}
        network = KeepNetwork[int](weights, edges, set(sources), sinks, prices)
        kept = budgeted_vertex_cut(network, sum(weights) // 3, CheapestSets(network, 0))
        for vertex in kept or ():
            without = kept - {vertex}
            made = network.made(without)
            assert made & set(sources) or network.price_of(without) > network.price_of(kept)


def test_a_large_network_within_a_limit_is_near_the_exact_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = random.Random(0)
    count = 200
    weights = [draw.randint(1, 100) * 10**6 for _ in range(count)]
    edges = [(max(0, b - draw.randint(1, 8)), b) for b in range(1, count) for _ in range(2)]
    sources = [0, *(v for v in range(1, count) if draw.random() < 0.05)]
    sinks = [v for v in range(count) if draw.random() < 0.3]
    prices = {v: draw.randint(1, 10**8) for v in range(count) if v not in sources}
    limit = sum(weights[sink] for sink in sinks) // 2
    network = KeepNetwork[int](weights, edges, set(sources), sinks, prices)
    exact = budgeted_vertex_cut(network, limit)
    monkeypatch.setattr("hloom.passes.analysis.budgeted_cut._MOST_VERTICES", 0)
    near = budgeted_vertex_cut(network, limit, CheapestSets(network, 0))
    assert exact is not None
    assert near is not None
    assert network.weigh(near) <= limit
    least = network.price_of(exact)
    assert least <= network.price_of(near) <= 1.2 * least


def test_parts_of_a_large_network_are_cut_at_different_prices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three copies of a chain: within the limit one of them keeps what is dear to make."""
    weights = [1, 30, 40] * 3
    edges = [(start + step, start + step + 1) for start in (0, 3, 6) for step in (0, 1)]
    prices = {vertex: 100 for start in (0, 3, 6) for vertex in (start + 1, start + 2)}
    network = KeepNetwork[int](weights, edges, {0, 3, 6}, [2, 5, 8], prices)
    limit = 1 + 1 + 40
    exact = budgeted_vertex_cut(network, limit)
    monkeypatch.setattr("hloom.passes.analysis.budgeted_cut._MOST_VERTICES", 0)
    near = budgeted_vertex_cut(network, limit, CheapestSets(network, 0))
    assert exact is not None
    assert near is not None
    assert network.weigh(near) <= limit
    assert network.price_of(near) == network.price_of(exact) == 400


def test_highs_has_nothing_to_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints that it repairs an answer, on the program's own standard output, where what whole
    numbers within its tolerance add up to is beyond its tolerance of a sum."""
    asked: list[float] = []

    def spy(c: Any, **given: Any) -> Any:
        _, limit = given["constraints"]
        asked.append(float(np.abs(limit.A).sum()))
        return milp(c, **given)

    monkeypatch.setattr("scipy.optimize.milp", spy)
    for seed in range(20):
        draw = random.Random(seed)
        count = 60
        weights = [draw.randint(1, 2000) * 10**6 for _ in range(count)]
        edges = [(draw.randint(max(0, b - 6), b - 1), b) for b in range(1, count) for _ in range(2)]
        sinks = draw.sample(range(20, count), 12)
        prices = {v: draw.randint(1, 10**6) for v in range(4, count)}
        network = KeepNetwork[int](weights, edges, {0, 1, 2, 3}, sinks, prices)
        limit = sum(weights[sink] for sink in sinks) // 2
        kept = budgeted_vertex_cut(network, limit, CheapestSets(network, 0))
        assert kept is None or network.weigh(kept) <= limit
    assert asked
    assert max(asked) <= 1 + 1e-9
