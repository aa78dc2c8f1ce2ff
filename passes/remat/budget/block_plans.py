"""What each candidate saves and recomputes in the straight-line blocks of a module, cached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jax.extend.mlir import ir

from hloom.passes.remat.block.schedule import CloneSchedule
from hloom.passes.remat.block.values import ForwardValues
from hloom.passes.remat.block.windows import PriceSchedule, Solved, keep, split
from hloom.passes.remat.budget.price_grid import EXPENSIVE_PRICES, STEPS, Candidate, PriceGrid


class BlockPlans:
    """The blocks' schedules for each candidate; candidates that keep the same values share them."""

    def __init__(self, forwards: Mapping[ir.Block, ForwardValues], price_grid: PriceGrid) -> None:
        self.forwards, self.price_grid = forwards, price_grid
        self._solved: Solved = {}
        self._windows: dict[tuple[ForwardValues, int, bool], list[range]] = {}
        self._keeps: dict[tuple[ForwardValues, Candidate], frozenset[int]] = {}
        self._schedules: dict[tuple[ForwardValues, int, bool, frozenset[int]], CloneSchedule] = {}

    @property
    def longest(self) -> int:
        """Operations of the longest backward pass; 0 where nothing may be recomputed."""
        return max((sum(forward.backward) for forward in self.forwards.values()), default=0)

    def kept_bytes(self, candidate: Candidate) -> dict[ir.Block, int]:
        """By block, the bytes of saved values, without results of its loops."""
        return {
            forward.graph.block: forward.weigh(
                self._kept(forward, windows, candidate) - forward.of_loops
            )
            for forward, windows in self._windowed(candidate)
        }

    def schedules(self, candidate: Candidate) -> dict[ir.Block, CloneSchedule]:
        """By block, the schedule of its clones."""
        return {
            forward.graph.block: self._schedule(forward, windows, candidate)
            for forward, windows in self._windowed(candidate)
        }

    def _windowed(self, candidate: Candidate) -> Iterator[tuple[ForwardValues, list[range]]]:
        """The blocks that a candidate rewrites, with their windows."""
        for forward in self.forwards.values() if candidate.window_length else ():
            key = forward, candidate.window_length, candidate.cheap_prefix > 0
            if key not in self._windows:
                self._windows[key] = split(
                    forward, candidate.window_length, loss_apart=candidate.cheap_prefix > 0
                )
            yield forward, self._windows[key]

    def _schedule(
        self, forward: ForwardValues, windows: Sequence[range], candidate: Candidate
    ) -> CloneSchedule:
        kept = self._kept(forward, windows, candidate)
        key = forward, candidate.window_length, candidate.cheap_prefix > 0, kept
        if key not in self._schedules:
            self._schedules[key] = CloneSchedule(forward, windows, kept)
        return self._schedules[key]

    def _kept(
        self, forward: ForwardValues, windows: Sequence[range], candidate: Candidate
    ) -> frozenset[int]:
        key = forward, candidate
        if key not in self._keeps:
            self._keeps[key] = self._keep(forward, windows, candidate)
        return self._keeps[key]

    def _keep(
        self, forward: ForwardValues, windows: Sequence[range], candidate: Candidate
    ) -> frozenset[int]:
        price_index, step = candidate.price_index, candidate.step
        price_schedule = PriceSchedule.flat(self.price_grid.rates(price_index))
        if step:
            made = [p for p, backward in enumerate(forward.backward) if not backward]
            border = made[len(made) * (STEPS - step) // STEPS]
            price_schedule = PriceSchedule(
                self.price_grid.rates(price_index), self.price_grid.rates(price_index + 1), border
            )
        only_cheap = PriceSchedule.flat(self.price_grid.rates(max(price_index, EXPENSIVE_PRICES)))
        prefix = min(candidate.cheap_prefix, len(windows))
        price_schedules = [only_cheap] * prefix + [price_schedule] * (len(windows) - prefix)
        return keep(forward, windows, price_schedules, self._solved)
