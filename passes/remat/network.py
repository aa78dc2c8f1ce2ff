"""A straight-line block as a flow network: what can be kept, what recomputed, at what weight."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hloom.passes.analysis.graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.mincut import minimum_vertex_cut
from hloom.passes.analysis.phases import is_backward

_SHORTEST_GAP, _LONGEST_GAP_SHARE = 64, 16
"""A recomputed value may lie unread for 64 operations of the backward pass, or a sixteenth of it
where that is longer. A value with a longer gap is kept: it would be alive for most of the backward
pass either way. This also bounds the work: nothing is recomputed twice, and a long chain of cheap
operations is not run from its start."""


class Network:
    """The values of a block as vertices; what each is for is told by the attributes.

    ``sinks`` are the forward values that backward operations read. ``recomputable`` ones are made
    by cheap forward operations. ``constant`` ones are in nobody's way: they can be had anywhere.
    ``weights`` are the bytes that keeping a value costs, 0 where it is kept anyway.
    """

    def __init__(self, graph: BlockGraph, min_bytes: int) -> None:
        self.graph = graph
        self.backward = [is_backward(op) for op in graph.ops]
        self.constant = graph.constant_derived()
        self.longest_gap = max(_SHORTEST_GAP, sum(self.backward) // _LONGEST_GAP_SHARE)
        returned = set(graph.operands[-1]) if graph.ops else set()
        self.recomputable: list[bool] = []
        self.weights: list[int] = []
        self.sinks: list[int] = []
        for value, producer in enumerate(graph.producers):
            inside = producer != FROM_OUTSIDE
            forward = not inside or not self.backward[producer]
            self.recomputable.append(forward and graph.is_recomputable(value))
            size = graph.size(value)
            alive_anyway = not inside or value in returned or size < min_bytes
            self.weights.append(0 if alive_anyway or graph.is_small_reduction(value) else size)
            if forward and not self.constant[value] and self._reads(value):
                self.sinks.append(value)
        self._early: set[tuple[int, int]] = set()
        """Pairs of a value and the position of an operation that is due long before the value's
        other readers: to be computed again for that one, the value would have to be kept."""
        self._read_far_apart: set[int] = set()
        """Values with a long gap between backward operations that read them."""
        self._find_early_uses()

    def _reads(self, value: int) -> list[int]:
        """The backward positions that read the value, in order."""
        return [user for user in self.graph.users[value] if self.backward[user]]

    def _find_early_uses(self) -> None:
        """Goes back through the block with the places where each value would be due.

        A value is due where backward operations read it, and where what is made of it is due
        first. Where that leaves a long gap, it cannot be recomputed for those before the gap.
        """
        graph = self.graph
        due: list[list[tuple[int, int | None]]] = [[] for _ in graph.values]
        for position in range(len(graph.ops) - 1, -1, -1):
            firsts = []
            for value in graph.results[position]:
                due[value] += [(reader, None) for reader in self._reads(value)]
                due[value].sort(key=lambda entry: entry[0])
                firsts += self._first_after_gaps(value, due[value])
            if firsts and self.recomputable[graph.results[position][0]]:
                for operand in graph.operands[position]:
                    due[operand].append((min(firsts), position))

    def _first_after_gaps(self, value: int, due: list[tuple[int, int | None]]) -> list[int]:
        """Where the value is due first, after the last long gap; notes the uses before that."""
        start = 0
        for number, (earlier, later) in enumerate(pairwise(due)):
            if later[0] - earlier[0] > self.longest_gap:
                start = number + 1
        for _, user in due[:start]:
            if user is None:
                self._read_far_apart.add(value)
            else:
                self._early.add((value, user))
        return [due[start][0]] if due else []

    def has_long_gap(self, positions: Iterable[int]) -> bool:
        """Whether a value due at these positions, in order, would lie unread for too long."""
        return any(later - earlier > self.longest_gap for earlier, later in pairwise(positions))

    def weigh(self, values: frozenset[int]) -> int:
        return sum(self.weights[value] for value in values)

    def cut(self, banned: frozenset[int]) -> frozenset[int]:
        """The values to keep, where ``banned`` ones may not be recomputed.

        An early use of a value is an edge from a copy of it that can only be kept. Where the value
        is kept for its own sake as well it is weighed twice, so that the cut rather keeps what the
        early use makes.
        """
        graph, count = self.graph, len(self.graph.values)
        weights = list(self.weights)
        sources: list[int] = []
        edges: list[tuple[int, int]] = []
        copies: dict[int, int] = {}
        for value, producer in enumerate(graph.producers):
            if self.constant[value]:
                continue
            if not self._may_be_recomputed(value, banned):
                sources.append(value)
                continue
            for read in graph.operands[producer]:
                if (read, producer) in self._early:
                    if read not in copies:
                        copies[read] = len(weights)
                        weights.append(self.weights[read])
                    edges.append((copies[read], value))
                else:
                    edges.append((read, value))
        cut = minimum_vertex_cut(weights, edges, [*sources, *copies.values()], self.sinks)
        return frozenset(
            [value for value in cut if value < count]
            + [value for value, copy in copies.items() if copy in cut]
        )

    def _may_be_recomputed(self, value: int, banned: frozenset[int]) -> bool:
        return (
            self.recomputable[value] and value not in banned and value not in self._read_far_apart
        )
