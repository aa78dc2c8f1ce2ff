"""What each candidate keeps and computes again in a module's straight-line blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jax.extend.mlir import ir

from hloom.passes.remat.block.schedule import Schedule
from hloom.passes.remat.block.values import Forward
from hloom.passes.remat.block.windows import Solved, Tariff, keep, split
from hloom.passes.remat.budget.price_grid import EXPENSIVE_RUNGS, FINE, Candidate, Ladder


class StraightLines:
    """The blocks' schedules for each candidate; candidates that keep the same values share them."""

    def __init__(self, forwards: Mapping[ir.Block, Forward], ladder: Ladder) -> None:
        self.forwards, self.ladder = forwards, ladder
        self._solved: Solved = {}
        self._windows: dict[tuple[Forward, int, bool], list[range]] = {}
        self._keeps: dict[tuple[Forward, Candidate], frozenset[int]] = {}
        self._schedules: dict[tuple[Forward, int, bool, frozenset[int]], Schedule] = {}

    @property
    def longest(self) -> int:
        """Operations of the longest backward pass; 0 where nothing may be recomputed."""
        return max((sum(forward.backward) for forward in self.forwards.values()), default=0)

    def kept_bytes(self, candidate: Candidate) -> dict[ir.Block, int]:
        """By block, bytes of what is kept beside the results of its loops."""
        return {
            forward.graph.block: forward.weigh(
                self._kept(forward, windows, candidate) - forward.of_loops
            )
            for forward, windows in self._windowed(candidate)
        }

    def schedules(self, candidate: Candidate) -> dict[ir.Block, Schedule]:
        """By block, what is recomputed where."""
        return {
            forward.graph.block: self._schedule(forward, windows, candidate)
            for forward, windows in self._windowed(candidate)
        }

    def _windowed(self, candidate: Candidate) -> Iterator[tuple[Forward, list[range]]]:
        """The blocks that a candidate is about, and their windows."""
        for forward in self.forwards.values() if candidate.length else ():
            key = forward, candidate.length, candidate.lead > 0
            if key not in self._windows:
                self._windows[key] = split(forward, candidate.length, loss_apart=candidate.lead > 0)
            yield forward, self._windows[key]

    def _schedule(
        self, forward: Forward, windows: Sequence[range], candidate: Candidate
    ) -> Schedule:
        kept = self._kept(forward, windows, candidate)
        key = forward, candidate.length, candidate.lead > 0, kept
        if key not in self._schedules:
            self._schedules[key] = Schedule(forward, windows, kept)
        return self._schedules[key]

    def _kept(
        self, forward: Forward, windows: Sequence[range], candidate: Candidate
    ) -> frozenset[int]:
        key = forward, candidate
        if key not in self._keeps:
            self._keeps[key] = self._keep(forward, windows, candidate)
        return self._keeps[key]

    def _keep(
        self, forward: Forward, windows: Sequence[range], candidate: Candidate
    ) -> frozenset[int]:
        rung, fine = candidate.rung, candidate.fine
        tariff = Tariff.flat(self.ladder.rates(rung))
        if fine:
            made = [p for p, backward in enumerate(forward.backward) if not backward]
            border = made[len(made) * (FINE - fine) // FINE]
            tariff = Tariff(self.ladder.rates(rung), self.ladder.rates(rung + 1), border)
        only_cheap = Tariff.flat(self.ladder.rates(max(rung, EXPENSIVE_RUNGS)))
        lead = min(candidate.lead, len(windows))
        tariffs = [only_cheap] * lead + [tariff] * (len(windows) - lead)
        return keep(forward, windows, tariffs, self._solved)
