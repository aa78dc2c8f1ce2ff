"""What each setting keeps and computes again in a module's straight-line blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jax.extend.mlir import ir

from hloom.passes.remat.block.schedule import CloneSchedule
from hloom.passes.remat.block.values import ForwardValues
from hloom.passes.remat.block.windows import PriceSchedule, Solved, keep, split
from hloom.passes.remat.budget.price_grid import EXPENSIVE_PRICES, FINE, PriceGrid, Setting


class BlockPlans:
    """The blocks' schedules, setting by setting; of settings that keep the same the same ones."""

    def __init__(self, forwards: Mapping[ir.Block, ForwardValues], ladder: PriceGrid) -> None:
        self.forwards, self.ladder = forwards, ladder
        self._solved: Solved = {}
        self._windows: dict[tuple[ForwardValues, int, bool], list[range]] = {}
        self._keeps: dict[tuple[ForwardValues, Setting], frozenset[int]] = {}
        self._schedules: dict[tuple[ForwardValues, int, bool, frozenset[int]], CloneSchedule] = {}

    @property
    def longest(self) -> int:
        """Operations of the longest backward pass; 0 where nothing may be recomputed."""
        return max((sum(forward.backward) for forward in self.forwards.values()), default=0)

    def kept_bytes(self, setting: Setting) -> dict[ir.Block, int]:
        """By block, bytes of what is kept beside the results of its loops."""
        return {
            forward.graph.block: forward.weigh(
                self._kept(forward, windows, setting) - forward.of_loops
            )
            for forward, windows in self._windowed(setting)
        }

    def schedules(self, setting: Setting) -> dict[ir.Block, CloneSchedule]:
        """By block, what is recomputed where."""
        return {
            forward.graph.block: self._schedule(forward, windows, setting)
            for forward, windows in self._windowed(setting)
        }

    def _windowed(self, setting: Setting) -> Iterator[tuple[ForwardValues, list[range]]]:
        """The blocks that a setting is about, and their windows."""
        for forward in self.forwards.values() if setting.length else ():
            key = forward, setting.length, setting.lead > 0
            if key not in self._windows:
                self._windows[key] = split(forward, setting.length, loss_apart=setting.lead > 0)
            yield forward, self._windows[key]

    def _schedule(
        self, forward: ForwardValues, windows: Sequence[range], setting: Setting
    ) -> CloneSchedule:
        kept = self._kept(forward, windows, setting)
        key = forward, setting.length, setting.lead > 0, kept
        if key not in self._schedules:
            self._schedules[key] = CloneSchedule(forward, windows, kept)
        return self._schedules[key]

    def _kept(
        self, forward: ForwardValues, windows: Sequence[range], setting: Setting
    ) -> frozenset[int]:
        key = forward, setting
        if key not in self._keeps:
            self._keeps[key] = self._keep(forward, windows, setting)
        return self._keeps[key]

    def _keep(
        self, forward: ForwardValues, windows: Sequence[range], setting: Setting
    ) -> frozenset[int]:
        price_index, fine = setting.price_index, setting.fine
        tariff = PriceSchedule.flat(self.ladder.rates(price_index))
        if fine:
            made = [p for p, backward in enumerate(forward.backward) if not backward]
            border = made[len(made) * (FINE - fine) // FINE]
            tariff = PriceSchedule(
                self.ladder.rates(price_index), self.ladder.rates(price_index + 1), border
            )
        only_cheap = PriceSchedule.flat(self.ladder.rates(max(price_index, EXPENSIVE_PRICES)))
        lead = min(setting.lead, len(windows))
        tariffs = [only_cheap] * lead + [tariff] * (len(windows) - lead)
        return keep(forward, windows, tariffs, self._solved)
