"""Selects the values that the bodies of a group of loops save, by one minimum vertex cut.

Weights and prices are in bytes, for whole stacks and all iterations. A value that is saved is saved
for all loops that read it; each of these loops recomputes the others that it needs.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ...analysis.budgeted_cut import FlowNetwork, budgeted_vertex_cut
from ...analysis.mincut import Solved, minimum_vertex_cut, rounding
from ...analysis.pricing import Pricing
from ...analysis.program import FROM_OUTSIDE
from ...analysis.reach import reached
from ...ir import walk
from .bodies import ScanBody

Shared = tuple[ScanBody, int]
"""A value of a body."""


class _Network(tuple[tuple[object, ...], ...]):
    """The parts that make two problems equal except for prices; hashed once, looked up often."""

    @functools.cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


def shared_values(bodies: Iterable[ScanBody]) -> list[Shared]:
    """Returns stacked values that several loops read, or that a loop reads whose values are read.

    Without saved values a cut counts recomputation once for each loop that needs it. Where such a
    value is saved, later loops need none of its operands.
    """
    found: dict[Shared, None] = {}
    for body in bodies:
        found |= dict.fromkeys(body.links.values())
        readers = Counter(
            residual.stack.number for pair in body.pairs for residual in pair.residuals
        )
        index = body.graph.index
        found |= {
            (body, index[residual.stored]): None
            for number, residual in body.residuals.items()
            if readers[number] > 1
        }
    return list(found)


@dataclass(eq=False)
class CutProblem:
    """The flow network over all bodies; it does not depend on prices.

    A vertex is a value, or an operation with several results.

    Attributes:
      bodies: the bodies of the group, each followed by its inner ones.
      rerun: the inner bodies whose forward loops are rerun.
      saved: by body, values that are saved where they are read, not recomputed.
      first: by body, the vertex of its first value.
      made: by vertex whose price is that of an operation, the operation's body and position.
      times: by such a vertex, how many backward loops need it where nothing is saved.
    """

    bodies: list[ScanBody]
    rerun: frozenset[ScanBody]
    min_bytes: int
    only_cheap: bool
    saved: frozenset[Shared] = frozenset()
    first: dict[ScanBody, int] = field(default_factory=dict)
    weights: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    sinks: list[int] = field(default_factory=list)
    made: dict[int, tuple[ScanBody, int]] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    _least: dict[tuple[int, ...], int] = field(default_factory=dict)
    """By prices, the weight and price of the cut of least cost."""
    _known_work: list[tuple[int, bool, float, int]] | None = None
    """The work for one device, whose pricings differ by their rates."""

    @classmethod
    def of(
        cls,
        outermost: Iterable[ScanBody],
        rerun: frozenset[ScanBody],
        min_bytes: int,
        *,
        only_cheap: bool,
        saved: frozenset[Shared] = frozenset(),
    ) -> CutProblem:
        """Returns the problem of some bodies and their inner ones, of which ``rerun`` are rerun."""
        bodies = [body for one in outermost for body in one.all()]
        problem = cls(bodies, rerun, min_bytes, only_cheap, saved)
        problem._weigh()
        problem._connect()
        problem._count_readers()
        return problem

    def cut(self, pricing: Pricing | None, solved: Solved) -> frozenset[int]:
        """Returns vertices to save: those of least weight plus price of all recomputed vertices.

        ``solved`` has the cuts of equal problems, to which new ones are added.
        """
        prices = self._capped(pricing)
        key = self._network, tuple(prices.values())
        if key not in solved:
            solved[key] = minimum_vertex_cut(
                self.weights, self.edges, self.sources, self.sinks, prices
            )
        return solved[key]

    def cut_within(
        self, pricing: Pricing | None, cap_bytes: int, solved: Solved
    ) -> tuple[frozenset[int], int] | None:
        """Returns the vertices to save, within ``cap_bytes``, at the least price of the rest, and
        that price; None if nothing fits.

        ``solved`` is as for `cut`. The best cut within more bytes than it takes is the best within
        any number of bytes between the two.
        """
        prices = self.prices(pricing)
        # A value that cannot be stored exceeds any cap.
        weights = [weight if weight < self.unstorable else cap_bytes + 1 for weight in self.weights]
        network = FlowNetwork(weights, self.edges, self.sources, self.sinks, prices)
        key = self._network, tuple(prices.values())
        caps = solved.get((key, "caps"), frozenset())
        known = (solved[key, cap] for cap in sorted(caps) if cap >= cap_bytes)
        kept = next((one for one in known if network.weigh(one) <= cap_bytes), None)
        if kept is None:
            kept = budgeted_vertex_cut(network, cap_bytes)
            if kept is None:
                return None
            solved[key, "caps"], solved[key, cap_bytes] = caps | {cap_bytes}, kept
        return kept, network.price_of(kept)

    def least_price(self, pricing: Pricing, cap_bytes: int, solved: Solved) -> int:
        """Returns a lower bound of the price within ``cap_bytes``, from the cut without a cap,
        whose weight and price count together; quicker than `cut_within`.

        ``solved`` is as for `cut`.
        """
        prices = self._capped(pricing)
        key = tuple(prices.values())
        if key not in self._least:
            network = FlowNetwork(self.weights, self.edges, self.sources, self.sinks, prices)
            kept = self.cut(pricing, solved)
            cost = network.weigh(kept) + network.price_of(kept)
            self._least[key] = cost - rounding(self.weights, prices)
        return self._least[key] - cap_bytes

    def _capped(self, pricing: Pricing | None) -> dict[int, int]:
        """Returns the prices, each limited to `unstorable`, which no value is worth."""
        prices = self.prices(pricing)
        return {vertex: min(price, self.unstorable) for vertex, price in prices.items()}

    @functools.cached_property
    def _network(self) -> _Network:
        parts = self.weights, self.edges, self.sources, self.sinks, self.made
        return _Network(tuple(part) for part in parts)

    def prices(self, pricing: Pricing | None) -> dict[int, int]:
        """Returns, by vertex, the price of recomputing it; empty without a pricing: all is free."""
        if pricing is None:
            return {}
        price = pricing.of_work
        return {
            vertex: price(cheap, seconds) * runs
            for vertex, cheap, seconds, runs in self._work(pricing)
        }

    def _work(self, pricing: Pricing) -> list[tuple[int, bool, float, int]]:
        """Returns, by vertex with a price, its operation's work, and how often that runs again."""
        if self._known_work is None:
            self._known_work = [
                (vertex, *pricing.work(body.graph.ops[position]), body.runs * self.times[vertex])
                for vertex, (body, position) in self.made.items()
            ]
        return self._known_work

    def is_recomputable(self, body: ScanBody, value: int) -> bool:
        """Whether a value of a body may be recomputed in the backward body."""
        if value in body.held or value in body.again or (body, value) in self.saved:
            return False
        graph = body.graph
        return graph.is_cheap(value) if self.only_cheap else graph.is_pure(value)

    def _weigh(self) -> None:
        stored = [
            body.kept_bytes(body.graph.index[residual.stored], frozenset())
            for body in self.bodies
            for residual in body.residuals.values()
        ]
        read = [
            child.parent.kept_bytes(value, frozenset())
            for child in self.rerun
            if child.parent is not None
            for value in child.parent.graph.operands[child.position]
        ]
        self.unstorable = 1 + sum(stored) + sum(read)
        """More than the weight of all saved values and all reads of rerun loops: it means
        infinity."""
        for body in self.bodies:
            self.first[body] = len(self.weights)
            for value in range(len(body.graph.sizes)):
                self.weights.append(self._weight(body, value))

    def _weight(self, body: ScanBody, value: int) -> int:
        graph = body.graph
        if value in body.again:
            return 0
        if body.is_there(value):
            return body.bytes_from_outside(value) if body.parent is None else 0
        if body.outside(value) is not None:
            return self.unstorable
        if body.parent is None and value in body.stacked:
            return 0
        if self.only_cheap and graph.is_small_reduction(value):
            return 0
        # A stack of unknown length counts as one slice.
        held = max(body.kept_bytes(value, self.rerun), graph.bytes_of(value))
        if value in body.residual_of and held < self.min_bytes:
            return 0
        if not isinstance(graph.values[value].type, ir.RankedTensorType) or not graph.sizes[value]:
            return self.unstorable
        return min(body.kept_bytes(value, self.rerun), self.unstorable)

    def _connect(self) -> None:
        for body in self.bodies:
            first, graph = self.first[body], body.graph
            for value, producer in enumerate(graph.producers):
                if body.constant[value]:
                    continue
                if value in body.links:
                    before, same = body.links[value]
                    self.edges.append((self.first[before] + same, first + value))
                elif producer == FROM_OUTSIDE:
                    self._connect_from_outside(body, value)
                elif not self.is_recomputable(body, value):
                    self.sources.append(first + value)
                elif value == graph.results[producer][0]:
                    self._connect_operation(body, producer)
            read = [value for value in body.residual_of if not body.constant[value]]
            self.sinks += [first + value for value in read]

    def _connect_from_outside(self, body: ScanBody, value: int) -> None:
        vertex, outside = self.first[body] + value, body.outside(value)
        if outside is None:
            self.sources.append(vertex)
        else:
            around, same = outside
            self.edges.append((self.first[around] + same, vertex))

    def _connect_operation(self, body: ScanBody, position: int) -> None:
        first, graph = self.first[body], body.graph
        results = [first + value for value in graph.results[position]]
        made = results[0]
        if len(results) > 1:
            # The operation is a vertex of its own, so that its price counts once.
            made = len(self.weights)
            self.weights.append(self.unstorable)
            self.edges += [(made, result) for result in results]
        self.edges += [(first + read, made) for read in graph.operands[position]]
        if any(child.position == position for child in self.rerun if child.parent is body):
            self.sinks.append(made)  # recomputed in any case
        self.made[made] = body, position

    def _count_readers(self) -> None:
        """Counts, for each vertex with a price, the backward loops whose reads lead back to it."""
        reads = self._read_by()
        if len(reads) < 2:
            self.times = dict.fromkeys(self.made, 1)
            return
        before: defaultdict[int, list[int]] = defaultdict(list)
        for tail, head in self.edges:
            before[head].append(tail)
        times: Counter[int] = Counter()
        for sinks in reads.values():
            times.update(reached(sinks, before.__getitem__))
        self.times = {vertex: max(times[vertex], 1) for vertex in self.made}

    def _read_by(self) -> dict[Hashable, list[int]]:
        """Returns, by outermost backward loop, vertices that it reads or that are rerun for it."""
        reads: defaultdict[Hashable, list[int]] = defaultdict(list)
        for body in self.bodies:
            outermost = body
            while outermost.parent is not None:
                outermost = outermost.parent
            # Inner pairs are those of a loop with one backward loop.
            for pair, around in zip(body.pairs, outermost.pairs, strict=True):
                reads[walk.key(around.backward.op)] += [
                    self.first[body] + body.graph.index[residual.stored]
                    for residual in pair.residuals
                    if residual.stack.number in body.residuals
                ]
        return reads


def price_in(body: ScanBody, position: int, pricing: Pricing | None) -> int:
    """Returns the price of recomputing an operation of a body in all iterations of its loop."""
    return 0 if pricing is None else pricing.of(body.graph.ops[position]) * body.runs
