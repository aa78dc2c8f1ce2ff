"""Which backward operation reads which recomputed values, and where these are cloned.

Values that are not saved are recomputed by groups of clones. A group is placed before its first
backward reader. It begins with an optimization barrier over the saved values that it starts from
and one gradient, the gate: XLA can then neither merge the clones with the first computation nor
schedule them before the gradient. Constants are cloned next to the group and do not pass the
barrier.

All values and operations are indices into the block's graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from hloom.passes.remat.block.values import ForwardValues

_FARTHEST_GRADIENT = 64
"""The number of gradients that are tried as a gate."""


@dataclass(frozen=True)
class Gate:
    """A gradient, the position of the barrier that it passes, and its readers from there on."""

    gradient: int
    before: int
    readers: tuple[int, ...]


@dataclass(frozen=True)
class ClonePlacement:
    """Forward operations that are cloned together before the operation at ``before``.

    ``leaves`` are the saved values that the clones start from. They pass a barrier together with
    the gradient of ``gate``.
    """

    before: int
    cloned: tuple[int, ...]
    leaves: tuple[int, ...]
    gate: Gate | None


@dataclass(frozen=True)
class BackwardWindow:
    """The clones of one window of the backward pass, and their readers.

    ``reads`` has, by the position of a reader, the recomputed values that it reads.
    """

    placements: tuple[ClonePlacement, ...]
    reads: dict[int, list[int]]


class CloneSchedule:
    """The clones that follow from a set of saved values."""

    def __init__(
        self, forward: ForwardValues, windows: Sequence[range], kept: frozenset[int]
    ) -> None:
        self.forward = forward
        self.graph = forward.graph
        self.kept = kept
        self.seconds = 0.0
        """The weighted time of the clones: cheap work counts by a share."""
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
        """The forward positions to clone for the wanted values, without those in ``made``."""
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
        """The clones of each reader; readers with the same position and gate share one group."""
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
        """The operands of cloned operations, results of one another included."""
        operands = self.graph.operands
        return {operand for producer in cloned for operand in operands[producer]}

    def _leaves(self, operands: set[int], made: set[int]) -> list[int]:
        """The saved values among the operands of cloned operations."""
        constant = self.forward.constant
        return [value for value in operands - made if not constant[value]]

    def _earliest(self, operands: set[int], placed: dict[int, int]) -> int:
        """The first position at which all operands of cloned operations are available."""
        producers = self.graph.producers
        return max([placed.get(value, producers[value] + 1) for value in operands], default=0)

    def _gate(self, position: int, earliest: int, placed: dict[int, int]) -> Gate | None:
        """The gate of the clones for the operation at ``position``; None if there is none.

        It is the latest gradient that is in memory in any case and still has readers. Results of
        cheap work are no gates: XLA fuses them, and a barrier would force them into memory.
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
