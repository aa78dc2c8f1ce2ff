"""Computes what each candidate saves and recomputes in a module's straight-line blocks, cached."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from jax.extend.mlir import ir

from ..analysis.mincut import Solved
from ..analysis.pricing import Rates
from ..recompute.block.schedule import CloneSchedule
from ..recompute.block.values import ForwardValues, Window
from ..recompute.block.windows import PriceSchedule, keep, split
from .candidates import EXPENSIVE_PRICES, PARTS, STEPS, Candidate, PriceGrid
from .machine.plan import EvictedPlans

_Split = tuple[int, bool, bool, bool]
"""The settings that a candidate's windows depend on."""

_Kept = tuple[frozenset[int], ...]
"""The saved values, by window."""


class BlockPlans:
    """The blocks' schedules for each candidate; candidates that save the same values share them."""

    def __init__(
        self, forwards: Mapping[ir.Block, ForwardValues], price_grid: PriceGrid, solved: Solved
    ) -> None:
        """``solved`` has the known cuts, to which new ones are added."""
        self.forwards, self.price_grid, self.solved = forwards, price_grid, solved
        self._windows: dict[tuple[ForwardValues, _Split], list[Window]] = {}
        self._keeps: dict[tuple[ForwardValues, Candidate], _Kept] = {}
        self._schedules: dict[tuple[ForwardValues, _Split, _Kept], CloneSchedule] = {}

    @property
    def longest(self) -> int:
        """Returns the number of operations after the highest border of a block; 0 where nothing may
        be recomputed."""
        return max(
            (len(one.graph.ops) - one.borders.highest for one in self.forwards.values()), default=0
        )

    @functools.cached_property
    def evicted(self) -> EvictedPlans | None:
        """Returns the plans by evictions; None unless the module has exactly one block, of which
        something may run again."""
        if len(self.forwards) != 1:
            return None
        plans = EvictedPlans(*self.forwards.values())
        return plans if plans.machine.problem.again else None

    def kept_bytes(self, candidate: Candidate) -> dict[ir.Block, int]:
        """Returns, by block, the bytes of saved values, without the results of its loops."""
        return {
            forward.graph.block: forward.weigh(
                self._kept(forward, windows, candidate)[0] - forward.of_loops
            )
            for forward, windows in self._windowed(candidate)
        }

    def schedules(self, candidate: Candidate) -> dict[ir.Block, CloneSchedule]:
        """Returns, by block, the schedule of its clones."""
        if candidate.evicted_to:
            assert self.evicted is not None
            schedule = self.evicted.at(self.evicted.peak_bytes * candidate.evicted_to // PARTS)
            return {} if schedule is None else {schedule.graph.block: schedule}
        return {
            forward.graph.block: self._schedule(forward, windows, candidate)
            for forward, windows in self._windowed(candidate)
        }

    def _windowed(self, candidate: Candidate) -> Iterator[tuple[ForwardValues, list[Window]]]:
        """Yields the blocks that a candidate rewrites, with their windows."""
        for forward in self.forwards.values() if candidate.window_length else ():
            key = forward, _split_of(candidate)
            if key not in self._windows:
                self._windows[key] = split(
                    forward,
                    candidate.window_length,
                    loss_apart=candidate.cheap_prefix > 0,
                    segmented=candidate.segmented,
                    nested=candidate.nested,
                )
            yield forward, self._windows[key]

    def _schedule(
        self, forward: ForwardValues, windows: Sequence[Window], candidate: Candidate
    ) -> CloneSchedule:
        kept = self._kept(forward, windows, candidate)
        key = forward, _split_of(candidate), kept
        if key not in self._schedules:
            self._schedules[key] = CloneSchedule(forward, windows, kept)
        return self._schedules[key]

    def _kept(
        self, forward: ForwardValues, windows: Sequence[Window], candidate: Candidate
    ) -> _Kept:
        key = forward, candidate
        if key not in self._keeps:
            self._keeps[key] = self._keep(forward, windows, candidate)
        return self._keeps[key]

    def _keep(
        self, forward: ForwardValues, windows: Sequence[Window], candidate: Candidate
    ) -> _Kept:
        price_index, step = candidate.price_index, candidate.step
        price_schedule = PriceSchedule.flat(self.price_grid.rates(price_index))
        if step:
            border = forward.borders.highest * (STEPS - step) // STEPS
            price_schedule = PriceSchedule(
                self.price_grid.rates(price_index), self.price_grid.rates(price_index + 1), border
            )
        rates = self.price_grid.rates(max(price_index, EXPENSIVE_PRICES))
        only_cheap = PriceSchedule.flat(Rates(math.inf, math.inf) if candidate.segmented else rates)
        prefix = min(candidate.cheap_prefix, len(windows))
        price_schedules = [only_cheap] * prefix + [price_schedule] * (len(windows) - prefix)
        return keep(forward, windows, price_schedules, self.solved)


def _split_of(candidate: Candidate) -> _Split:
    return (
        candidate.window_length,
        candidate.cheap_prefix > 0,
        candidate.segmented,
        candidate.nested,
    )
