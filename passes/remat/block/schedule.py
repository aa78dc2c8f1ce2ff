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

from hloom.passes.remat.block.values import ForwardValues

_FARTHEST_GRADIENT = 64
"""How many gradients are looked at for one that is still read."""


@dataclass(frozen=True)
class Gate:
    """A gradient, where a barrier with it can stand, and who reads it from there on."""

    gradient: int
    before: int
    readers: tuple[int, ...]


@dataclass(frozen=True)
class ClonePlacement:
    """Forward operations that are cloned together before the operation at ``before``.

    ``leaves`` are the kept values they start from, which pass a barrier with ``hold``'s gradient.
    """

    before: int
    cloned: tuple[int, ...]
    leaves: tuple[int, ...]
    gate: Gate | None


@dataclass(frozen=True)
class BackwardWindow:
    """What one window of the backward pass recomputes, and who reads it.

    ``reads`` has for each position that reads recomputed values those values.
    """

    placements: tuple[ClonePlacement, ...]
    reads: dict[int, list[int]]


class CloneSchedule:
    """The recomputation that follows from what is kept."""

    def __init__(
        self, forward: ForwardValues, windows: Sequence[range], kept: frozenset[int]
    ) -> None:
        self.forward = forward
        self.graph = forward.graph
        self.kept = kept
        self.seconds = 0.0
        """Time that the clones take, as it counts in prices: of cheap work a share."""
        self.windows = tuple(
            window for positions in windows if (window := self._window(positions)).reads
        )

    def _window(self, positions: range) -> BackwardWindow:
        forward, kept = self.forward, self.kept
        reads: dict[int, list[int]] = {}
        cloned: dict[int, list[int]] = {}
        made: set[int] = set()
        for position in positions:
            found = forward.backward_reads.get(position)
            if found is None:
                continue
            wanted = [value for value in found if value not in kept]
            if wanted:
                reads[position] = wanted
                if clones := self._closure(wanted, made):
                    cloned[position] = clones
        self.seconds += sum(forward.seconds.get(value, 0.0) for value in made)
        return BackwardWindow(self._placements(positions.start, cloned, made), reads)

    def _closure(self, wanted: list[int], made: set[int]) -> list[int]:
        """The forward positions to clone for the wanted values, where they are not ``made`` yet."""
        graph, forward, kept = self.graph, self.forward, self.kept
        recomputable, constant, tables = forward.recomputable, forward.constant, forward.tables
        clones: set[int] = set()
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if recomputable[value] and value not in kept:
                if value in made:
                    continue
                made.add(value)
            elif not constant[value] or value in tables:
                continue
            producer = graph.producers[value]
            if producer not in clones:
                clones.add(producer)
                for result in graph.results[producer]:
                    if recomputable[result] and result not in kept:
                        made.add(result)
                stack += graph.operands[producer]
        return sorted(clones)

    def _placements(
        self, start: int, cloned_for: dict[int, list[int]], made: set[int]
    ) -> tuple[ClonePlacement, ...]:
        """What is cloned for each reader; for neighbours with one place and gradient together."""
        results = self.graph.results
        placed: dict[int, int] = {}
        together: list[tuple[int, Gate | None, list[int]]] = []
        for position, cloned in cloned_for.items():
            gate = None
            operands = self._operands(cloned)
            if self._leaves(operands, made):
                gate = self._gate(position, max(start, self._earliest(operands, placed)), placed)
            before = gate.before if gate else position
            for producer in cloned:
                for value in results[producer]:
                    placed[value] = before
            if gate:
                placed[gate.gradient] = before
            if together and together[-1][:2] == (before, gate):
                together[-1][2].extend(cloned)
            else:
                together.append((before, gate, list(cloned)))
        return tuple(
            ClonePlacement(
                before,
                tuple(sorted(set(cloned))),
                tuple(sorted(self._leaves(self._operands(cloned), made))),
                gate,
            )
            for before, gate, cloned in together
        )

    def _operands(self, cloned: list[int]) -> set[int]:
        """What cloned operations read, of themselves as well."""
        operands = self.graph.operands
        return {operand for producer in cloned for operand in operands[producer]}

    def _leaves(self, operands: set[int], made: set[int]) -> list[int]:
        """The kept values among what cloned operations read."""
        constant = self.forward.constant
        return [value for value in operands - made if not constant[value]]

    def _earliest(self, operands: set[int], placed: dict[int, int]) -> int:
        """The first position where everything that cloned operations read is there."""
        producers = self.graph.producers
        return max([placed.get(value, producers[value] + 1) for value in operands], default=0)

    def _gate(self, position: int, earliest: int, placed: dict[int, int]) -> Gate | None:
        """The gradient that holds back what is cloned for the operation at ``position``.

        It is the youngest one that is in memory anyway and read from there on: not the result of
        cheap work, which XLA fuses and a barrier would force to memory.
        """
        graph, gradients = self.graph, self.forward.gradients
        youngest = bisect_left(self.forward.gradients_made_at, position)
        for value in reversed(gradients[max(0, youngest - _FARTHEST_GRADIENT) : youngest]):
            before = max(earliest, placed.get(value, 0), graph.producers[value] + 1)
            if before <= position:
                readers = tuple([user for user in graph.users[value] if user >= before])
                if readers:
                    return Gate(value, before, readers)
        return None
