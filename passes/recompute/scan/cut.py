"""Selects the values that the bodies of a group of loops save, by one minimum vertex cut.

Weights and prices are in bytes, for whole stacks and all iterations. A value that is saved is saved
for all loops that read it; each of these loops recomputes the others that it needs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping

from jax.extend.mlir import ir

from ...analysis.budgeted_cut import CheapestSets, budgeted_vertex_cut
from ...analysis.keep import KeepNetwork
from ...analysis.mincut import Solved
from ...analysis.pricing import CHEAP_SHARE, Pricing
from ...analysis.program import FROM_OUTSIDE
from ...ir import walk
from .bodies import ScanBody

Shared = tuple[ScanBody, int]
"""A value of a body."""


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


class CutProblem:
    """The network of the values of all bodies; it does not depend on prices.

    Attributes:
      bodies: the bodies of the group, each followed by its inner ones.
      rerun: the inner bodies whose forward loops are rerun.
      saved: by body, values that are saved where they are read, not recomputed.
      network: the network, in bytes.
      made: by vertex whose price is that of an operation, the operation's body and position.
      times: by such a vertex, how many backward loops need it where nothing is saved.
    """

    def __init__(
        self,
        outermost: Iterable[ScanBody],
        rerun: frozenset[ScanBody],
        min_bytes: int,
        *,
        only_cheap: bool,
        saved: frozenset[Shared] = frozenset(),
    ) -> None:
        """The problem of some bodies and their inner ones, of which ``rerun`` are rerun."""
        self.bodies = [body for one in outermost for body in one.all()]
        self.rerun, self.min_bytes = rerun, min_bytes
        self.only_cheap, self.saved = only_cheap, saved
        self.network = KeepNetwork[Shared]()
        self.made: dict[int, tuple[ScanBody, int]] = {}
        self._least: dict[tuple[int, ...], int] = {}
        """By prices, the weight and price of the cut of least cost."""
        self._cheapest: dict[tuple[int, ...], CheapestSets] = {}
        """By prices, the cheapest cuts for all caps."""
        self._known_work: list[tuple[int, bool, float, int]] | None = None
        """The work for one device, whose pricings differ by their rates."""
        self._weigh()
        self._connect()
        self.times = self._count_readers()

    def cut(self, pricing: Pricing | None, solved: Solved) -> frozenset[int]:
        """Returns vertices to save: those of least weight plus price of all recomputed vertices.

        Where stacks take time, each costs a kernel in every iteration besides its bytes: a product
        that is read in four slices is one stack, not four of their sigmoids. ``solved`` has the
        cuts of equal problems, to which new ones are added.
        """
        network = self._priced(pricing)
        if pricing is not None and pricing.speed.stack_s:
            kernel = pricing.of_work(True, pricing.speed.kernel_s * CHEAP_SHARE * CHEAP_SHARE)
            added = self._kernels(kernel)
            stored = (
                self.network.vertices[body, body.graph.index[residual.stored]]
                for body in self.bodies
                for residual in body.residuals.values()
            )
            network = network.weighed(added, sum(added.get(vertex, 0) for vertex in stored))
        return network.lightest(solved)

    def _kernels(self, price: int) -> dict[int, int]:
        """Returns, by the vertex of each stack, the price of a kernel in each iteration."""
        return {
            vertex: price * body.runs
            for (body, _), vertex in self.network.vertices.items()
            if 0 < self.network.weights[vertex] < self.network.never
        }

    def cut_within(
        self, pricing: Pricing | None, cap_bytes: int, solved: Solved
    ) -> tuple[frozenset[int], int] | None:
        """Returns the vertices to save, within ``cap_bytes``, at the least price of the rest, and
        that price; None if nothing fits. ``solved`` is as for `cut`."""
        network = self._priced(pricing)
        key = network.key, cap_bytes
        if key not in solved:
            prices = tuple(network.prices.values())
            if prices not in self._cheapest:
                self._cheapest[prices] = CheapestSets(network)
            kept = budgeted_vertex_cut(network, cap_bytes, self._cheapest[prices])
            if kept is None:
                return None
            solved[key] = kept
        return solved[key], network.price_of(solved[key])

    def least_price(self, pricing: Pricing, cap_bytes: int, solved: Solved) -> int:
        """Returns a lower bound of the price within ``cap_bytes``, from the cut without a cap,
        whose weight and price count together; quicker than `cut_within`.

        ``solved`` is as for `cut`.
        """
        network = self._priced(pricing)
        key = tuple(network.prices.values())
        if key not in self._least:
            self._least[key] = network.least(solved)
        return self._least[key] - cap_bytes

    def _priced(self, pricing: Pricing | None) -> KeepNetwork[Shared]:
        """Returns the network at its prices; without a pricing all is free."""
        if pricing is None:
            return self.network
        price = pricing.of_work
        prices = {
            vertex: price(cheap, seconds) * runs
            for vertex, cheap, seconds, runs in self._work(pricing)
        }
        return self.network.priced(prices)

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
        # More than the weight of all saved values and all reads of rerun loops.
        self.network.never = 1 + sum(stored) + sum(read)
        for body in self.bodies:
            for value in range(len(body.graph.sizes)):
                self.network.add((body, value), self._weight(body, value))

    def _weight(self, body: ScanBody, value: int) -> int:
        graph = body.graph
        if value in body.again:
            return 0
        if body.is_there(value):
            return body.bytes_from_outside(value) if body.parent is None else 0
        if body.outside(value) is not None:
            return self.network.never
        if body.parent is None and value in body.stacked:
            return 0
        if self.only_cheap and graph.is_small_reduction(value):
            return 0
        # A stack of unknown length counts as one slice.
        held = max(body.kept_bytes(value, self.rerun), graph.bytes_of(value))
        if value in body.residual_of and held < self.min_bytes:
            return 0
        if not isinstance(graph.values[value].type, ir.RankedTensorType) or not graph.sizes[value]:
            return self.network.never
        return min(body.kept_bytes(value, self.rerun), self.network.never)

    def _connect(self) -> None:
        network = self.network
        for body in self.bodies:
            graph = body.graph
            for value, producer in enumerate(graph.producers):
                same = body.links.get(value) or body.outside(value)
                if body.constant[value]:
                    network.make([(body, value)], [])
                elif same is not None:
                    network.make([(body, value)], [same])
                elif producer != FROM_OUTSIDE and value == graph.results[producer][0]:
                    self._connect_operation(body, producer)
            network.want((body, value) for value in body.residual_of if not body.constant[value])

    def _connect_operation(self, body: ScanBody, position: int) -> None:
        graph, network = body.graph, self.network
        results = graph.results[position]
        again = [value for value in results if self.is_recomputable(body, value)]
        if not again:
            return
        made = network.make(
            [(body, value) for value in results],
            [(body, read) for read in graph.operands[position]],
        )
        network.sources.update(
            network.vertices[body, value] for value in results if value not in again
        )
        if any(child.position == position for child in self.rerun if child.parent is body):
            network.sinks.append(made)  # recomputed in any case
        self.made[made] = body, position

    def _count_readers(self) -> Mapping[int, int]:
        """Counts, for each vertex with a price, the backward loops whose reads lead back to it."""
        reads = self._read_by()
        if len(reads) < 2:
            return dict.fromkeys(self.made, 1)
        times: Counter[int] = Counter()
        for sinks in reads.values():
            times.update(self.network.behind(sinks))
        return {vertex: max(times[vertex], 1) for vertex in self.made}

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
                    self.network.vertices[body, body.graph.index[residual.stored]]
                    for residual in pair.residuals
                    if residual.stack.number in body.residuals
                ]
        return reads


def price_in(body: ScanBody, position: int, pricing: Pricing | None) -> int:
    """Returns the price of recomputing an operation of a body in all iterations of its loop."""
    return 0 if pricing is None else pricing.of(body.graph.ops[position]) * body.runs
