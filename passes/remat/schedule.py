"""Which backward operation reads which recomputed values, and where those are cloned.

What is not kept is computed again in groups. A group stands before the first backward operation
that reads it and begins with an optimization barrier over the kept values it starts from and one
gradient, so that it can neither merge with the first computation nor start before its gradient is
there. Constants are cloned beside it and do not pass the barrier.

Everything here is by index, as in the block's graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from hloom.passes.analysis.graph import FROM_OUTSIDE
from hloom.passes.analysis.kinds import Kind, is_table
from hloom.passes.remat.forward import Forward

_FARTHEST_HOLD = 64
"""How many gradients are looked at for one that is still read."""


@dataclass(frozen=True)
class Hold:
    """A gradient, where a barrier with it can stand, and who reads it from there on."""

    gradient: int
    before: int
    readers: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Forward operations that are cloned together before the operation at ``before``.

    ``leaves`` are the kept values they start from, which pass a barrier with ``hold``'s gradient.
    """

    before: int
    cloned: tuple[int, ...]
    leaves: tuple[int, ...]
    hold: Hold | None


@dataclass(frozen=True)
class Window:
    """What one window of the backward pass recomputes, and who reads it.

    ``reads`` has for each position that reads recomputed values those values.
    """

    placements: tuple[Placement, ...]
    reads: dict[int, list[int]]


class Schedule:
    """The recomputation that follows from what is kept."""

    def __init__(self, forward: Forward, windows: Sequence[range], kept: frozenset[int]) -> None:
        self.forward = forward
        self.graph = forward.graph
        self.kept = kept
        self._gradients = [v for v in range(len(self.graph.values)) if self._is_gradient(v)]
        """Gradients that are in memory, in the order they are made."""
        self.seconds = 0.0
        """Time that the clones take."""
        self.windows = tuple(
            window for positions in windows if (window := self._window(positions)).reads
        )

    def _window(self, positions: range) -> Window:
        graph, forward = self.graph, self.forward
        reads: dict[int, list[int]] = {}
        cloned: dict[int, list[int]] = {}
        made: set[int] = set()
        for position in positions:
            if not forward.backward[position]:
                continue
            wanted = [value for value in graph.operands[position] if self._is_recomputed(value)]
            if wanted:
                reads[position] = wanted
                if clones := self._closure(wanted, made):
                    cloned[position] = clones
        self.seconds += sum(forward.seconds.get(value, 0.0) for value in made)
        return Window(self._placements(positions.start, cloned, made), reads)

    def _closure(self, wanted: list[int], made: set[int]) -> list[int]:
        """The forward positions to clone for the wanted values, where they are not ``made`` yet."""
        graph = self.graph
        clones: set[int] = set()
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if self._is_recomputed(value):
                if value in made:
                    continue
                made.add(value)
            elif not self.forward.constant[value] or is_table(graph.ops[graph.producers[value]]):
                continue
            producer = graph.producers[value]
            if producer not in clones:
                clones.add(producer)
                made.update(v for v in graph.results[producer] if self._is_recomputed(v))
                stack += graph.operands[producer]
        return sorted(clones)

    def _is_recomputed(self, value: int) -> bool:
        return self.forward.recomputable[value] and value not in self.kept

    def _placements(
        self, start: int, cloned_for: dict[int, list[int]], made: set[int]
    ) -> tuple[Placement, ...]:
        """What is cloned for each reader; for neighbours with one place and gradient together."""
        graph = self.graph
        placed: dict[int, int] = {}
        together: list[tuple[int, Hold | None, list[int]]] = []
        for position, cloned in cloned_for.items():
            hold = None
            if self._leaves(cloned, made):
                earliest = max(start, self._earliest(cloned, placed))
                hold = self._hold(position, earliest, placed)
            before = hold.before if hold else position
            placed |= {value: before for producer in cloned for value in graph.results[producer]}
            if hold:
                placed[hold.gradient] = before
            if together and together[-1][:2] == (before, hold):
                together[-1][2].extend(cloned)
            else:
                together.append((before, hold, list(cloned)))
        return tuple(
            Placement(before, tuple(sorted(set(cloned))), tuple(self._leaves(cloned, made)), hold)
            for before, hold, cloned in together
        )

    def _leaves(self, cloned: list[int], made: set[int]) -> list[int]:
        """The kept values that cloned operations start from."""
        graph, constant = self.graph, self.forward.constant
        operands = {operand for producer in cloned for operand in graph.operands[producer]}
        return sorted(v for v in operands if not constant[v] and v not in made)

    def _earliest(self, cloned: list[int], placed: dict[int, int]) -> int:
        """The first position where everything that cloned operations read is there."""
        graph = self.graph
        operands = {operand for producer in cloned for operand in graph.operands[producer]}
        return max((placed.get(v, graph.producers[v] + 1) for v in operands), default=0)

    def _hold(self, position: int, earliest: int, placed: dict[int, int]) -> Hold | None:
        """The gradient that holds back what is cloned for the operation at ``position``.

        It is the youngest one that is in memory anyway and read from there on: not the result of
        cheap work, which XLA fuses and a barrier would force to memory.
        """
        graph = self.graph
        youngest = bisect_left(self._gradients, position, key=lambda v: graph.producers[v])
        for value in reversed(self._gradients[max(0, youngest - _FARTHEST_HOLD) : youngest]):
            before = max(earliest, placed.get(value, 0), graph.producers[value] + 1)
            if before <= position:
                readers = tuple(user for user in graph.users[value] if user >= before)
                if readers:
                    return Hold(value, before, readers)
        return None

    def _is_gradient(self, value: int) -> bool:
        graph, forward = self.graph, self.forward
        producer = graph.producers[value]
        return (
            producer != FROM_OUTSIDE
            and forward.backward[producer]
            and graph.kinds[producer] is not Kind.CHEAP
            and not forward.constant[value]
            and graph.size(value) > 0
        )
