"""What the frames of a pair of loops keep, as a vertex cut of one network.

Weights and prices are those of one iteration of the outermost loop, in bytes of one of its slices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.analysis.block_graph import FROM_OUTSIDE
from hloom.passes.analysis.mincut import minimum_vertex_cut
from hloom.passes.remat.budget.pricing import Pricing
from hloom.passes.remat.scan.bodies import Frame


@dataclass(eq=False)
class Network:
    """Vertices of all frames, one for each value and one for each operation of several results.

    ``first`` is the vertex of a frame's first value, ``made`` has for the vertices that stand for
    an operation the operation's frame and position. Nothing of it depends on prices.
    """

    frames: list[Frame]
    rerun: frozenset[Frame]
    min_bytes: int
    only_cheap: bool
    first: dict[Frame, int] = field(default_factory=dict)
    weights: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    sinks: list[int] = field(default_factory=list)
    made: dict[int, tuple[Frame, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, frame: Frame, rerun: frozenset[Frame], min_bytes: int, *, only_cheap: bool
    ) -> Network:
        """The network of an outermost frame and those inside it, of which some are rerun."""
        network = cls(list(frame.all()), rerun, min_bytes, only_cheap)
        network._weigh()
        network._connect()
        return network

    def cut(self, pricing: Pricing | None) -> frozenset[int]:
        """The vertices to keep: those of least weight, with the prices of what they leave out."""
        prices = {
            vertex: min(price, self.unstorable) for vertex, price in self.prices(pricing).items()
        }
        return minimum_vertex_cut(self.weights, self.edges, self.sources, self.sinks, prices)

    def prices(self, pricing: Pricing | None) -> dict[int, int]:
        """By vertex, what making it costs; nothing where that is free for all."""
        if pricing is None:
            return {}
        return {
            vertex: price_in(frame, position, pricing)
            for vertex, (frame, position) in self.made.items()
        }

    def is_recomputable(self, frame: Frame, value: int) -> bool:
        """Whether a value made in a frame may be computed again in the backward body."""
        graph = frame.graph
        return graph.is_cheap(value) if self.only_cheap else graph.is_pure(value)

    def _weigh(self) -> None:
        stored = [
            frame.kept_bytes(frame.graph.index[link.stored], frozenset())
            for frame in self.frames
            for link in frame.links
        ]
        read = [
            child.parent.kept_bytes(value, frozenset())
            for child in self.rerun
            if child.parent is not None
            for value in child.parent.graph.operands[child.position]
        ]
        self.unstorable = 1 + sum(stored) + sum(read)
        """More than keeping everything costs that is kept today, or that a rerun loop reads."""
        for frame in self.frames:
            self.first[frame] = len(self.weights)
            for value in range(len(frame.graph.values)):
                self.weights.append(self._weight(frame, value))

    def _weight(self, frame: Frame, value: int) -> int:
        graph = frame.graph
        if frame.is_there(value):
            return frame.bytes_from_outside(value) if frame.parent is None else 0
        if frame.outside(value) is not None:
            return self.unstorable
        if frame.parent is None and value in frame.stacked:
            return 0
        if self.only_cheap and graph.is_small_reduction(value):
            return 0
        if value in frame.linked and graph.size(value) < self.min_bytes:
            return 0
        if not isinstance(graph.values[value].type, ir.RankedTensorType) or not graph.sizes[value]:
            return self.unstorable
        return min(frame.kept_bytes(value, self.rerun), self.unstorable)

    def _connect(self) -> None:
        for frame in self.frames:
            first, graph = self.first[frame], frame.graph
            for value, producer in enumerate(graph.producers):
                if frame.constant[value]:
                    continue
                if producer == FROM_OUTSIDE:
                    self._connect_from_outside(frame, value)
                elif not self.is_recomputable(frame, value):
                    self.sources.append(first + value)
                elif value == graph.results[producer][0]:
                    self._connect_operation(frame, producer)
            linked = [value for value in frame.linked if not frame.constant[value]]
            self.sinks += [first + value for value in linked]

    def _connect_from_outside(self, frame: Frame, value: int) -> None:
        vertex, outside = self.first[frame] + value, frame.outside(value)
        if outside is None:
            self.sources.append(vertex)
        else:
            around, same = outside
            self.edges.append((self.first[around] + same, vertex))

    def _connect_operation(self, frame: Frame, position: int) -> None:
        first, graph = self.first[frame], frame.graph
        results = [first + value for value in graph.results[position]]
        made = results[0]
        if len(results) > 1:
            # The operation is a vertex of its own: its price is paid once.
            made = len(self.weights)
            self.weights.append(self.unstorable)
            self.edges += [(made, result) for result in results]
        self.edges += [(first + read, made) for read in graph.operands[position]]
        if any(child.position == position for child in self.rerun if child.parent is frame):
            self.sinks.append(made)  # done again in any case
        self.made[made] = frame, position


def price_in(frame: Frame, position: int, pricing: Pricing | None) -> int:
    """What doing an operation of a frame again costs, in all iterations of its loop."""
    return 0 if pricing is None else pricing.of(frame.graph.ops[position]) * frame.runs
