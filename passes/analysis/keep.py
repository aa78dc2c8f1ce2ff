"""Keep a value, or make it again: the network whose minimum cut says which values to keep."""

from __future__ import annotations

import copy
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .mincut import Solved, minimum_vertex_cut, rounding
from .pricing import NEVER
from .reach import reached

_Value = TypeVar("_Value", bound=Hashable)


class _Structure(tuple[Hashable, ...]):
    """The parts that make two networks equal except for prices; hashed once, looked up often."""

    @functools.cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


@dataclass(eq=False)
class KeepNetwork(Generic[_Value]):
    """A directed graph of values, each of which is kept at a weight or made again at a price.

    Every sink has to be kept or made; a vertex is made from its predecessors, each kept or made in
    turn. A vertex is a value, or an operation with several results, so that its price counts once.
    The order of the vertices decides between cuts that `budgeted_vertex_cut` finds equal.

    Attributes:
      weights: by vertex, the weight of keeping it, at least 0.
      edges: pairs (from, to) of vertices.
      sources: vertices that cannot be made.
      sinks: vertices that are wanted.
      prices: the price of making a vertex, at least 0; where it is missing making it is free.
      vertices: by value, its vertex.
      never: the weight of what cannot be kept, and more than any value is worth.
    """

    weights: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)
    sinks: list[int] = field(default_factory=list)
    prices: dict[int, int] = field(default_factory=dict)
    vertices: dict[_Value, int] = field(default_factory=dict)
    never: int = NEVER

    def add(self, value: _Value, weight: int) -> None:
        """Adds a value; until `make` says what it is made from, it cannot be made."""
        self.vertices[value] = len(self.weights)
        self.sources.add(len(self.weights))
        self.weights.append(weight)

    def make(
        self, results: Sequence[_Value], reads: Iterable[_Value], price: int | None = None
    ) -> int:
        """Lets an operation make its results, and returns the vertex that its price belongs to."""
        made, *others = ends = [self.vertices[result] for result in results]
        if others:
            made = len(self.weights)
            self.weights.append(self.never)
            self.edges += [(made, end) for end in ends]
        self.edges += [(self.vertices[read], made) for read in reads]
        self.sources.difference_update(ends)
        if price is not None:
            self.prices[made] = price
        return made

    def want(self, values: Iterable[_Value]) -> None:
        """Adds values that have to be kept or made."""
        self.sinks += [self.vertices[value] for value in values]

    def priced(self, prices: dict[int, int]) -> KeepNetwork[_Value]:
        """Returns the complete network with these prices."""
        network = copy.copy(self)
        network.prices = prices
        return network

    def weighed(self, added: Mapping[int, int], never: int) -> KeepNetwork[_Value]:
        """Returns the complete network with more weight on vertices that can be kept, and with
        ``never`` more on the others."""
        network = copy.copy(self)
        network.never = self.never + never
        network.weights = [
            network.never if weight >= self.never else weight + added.get(vertex, 0)
            for vertex, weight in enumerate(self.weights)
        ]
        network.__dict__.pop("_structure", None)
        return network

    def lightest(self, solved: Solved | None = None) -> frozenset[int]:
        """Returns the vertices to keep: of least weight, with the price of what is made.

        ``solved`` has the cuts of equal networks, to which new ones are added.
        """
        solved, key = {} if solved is None else solved, self.key
        if key not in solved:
            solved[key] = minimum_vertex_cut(
                self.weights, self.edges, self.sources, self.sinks, self._capped
            )
        return solved[key]

    def least(self, solved: Solved) -> int:
        """Returns a lower bound of the weight of any cut with its price, by the lightest one."""
        kept, prices = self.lightest(solved), self._capped
        cost = self.weigh(kept) + sum(prices.get(vertex, 0) for vertex in self.made(kept))
        return cost - rounding(self.weights, prices)

    @property
    def _capped(self) -> dict[int, int]:
        return {vertex: min(price, self.never) for vertex, price in self.prices.items()}

    @property
    def key(self) -> Hashable:
        """Returns what equal networks have in common."""
        return self._structure, tuple(self.prices), tuple(self.prices.values())

    @functools.cached_property
    def _structure(self) -> _Structure:
        parts = self.weights, self.edges, sorted(self.sources), self.sinks, [self.never]
        return _Structure(tuple(part) for part in parts)

    def values_at(self, kept: frozenset[int]) -> set[_Value]:
        """Returns the values at these vertices; at an operation's all its results."""
        if operations := kept.difference(self.vertices.values()):
            kept = kept.union(end for start, end in self.edges if start in operations)
        return {value for value, vertex in self.vertices.items() if vertex in kept}

    def weigh(self, kept: frozenset[int]) -> int:
        """Returns the weight of these vertices."""
        return sum(self.weights[vertex] for vertex in kept)

    def price_of(self, kept: frozenset[int]) -> int:
        """Returns the price of making the sinks where these vertices are kept."""
        return sum(self.prices.get(vertex, 0) for vertex in self.made(kept))

    def needed(self) -> list[int]:
        """Returns the vertices from which a sink is reached, in order."""
        return sorted(self.made(frozenset()))

    def made(self, kept: frozenset[int]) -> set[int]:
        """Returns the sinks and all they are made from, back to the vertices that are kept."""
        return self.behind(self.sinks, kept)

    def behind(self, vertices: Iterable[int], kept: frozenset[int] = frozenset()) -> set[int]:
        """Returns some vertices and all they are made from, back to those that are kept."""
        from_ = self.made_from

        def to_make(vertices: Iterable[int]) -> list[int]:
            return [vertex for vertex in vertices if vertex not in kept]

        return reached(to_make(vertices), lambda vertex: to_make(from_.get(vertex, ())))

    @functools.cached_property
    def made_from(self) -> dict[int, list[int]]:
        """Returns what each vertex is made from."""
        from_: dict[int, list[int]] = {}
        for start, end in self.edges:
            from_.setdefault(end, []).append(start)
        return from_
