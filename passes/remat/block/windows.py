"""The windows of the backward pass, and the values to save so that each window can recompute its
reads.

A value is recomputed at most once in a window, and only saved values live across windows. The
length of the windows therefore bounds the memory of recomputed values. Each window has a minimum
cut of its own. The windows are solved from the one that runs last (the first layers) to the one
that runs first; a value that one window saves costs the next ones nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hloom.passes.analysis.mincut import minimum_vertex_cut
from hloom.passes.remat.block.values import ForwardValues
from hloom.passes.remat.budget.pricing import Rates

_SMALLEST_SEARCH, _SEARCH_SHARE = 256, 4
"""The number of forward values that the cut of a window may contain: `_SMALLEST_SEARCH`, or
`_SEARCH_SHARE` times the window's reads if that is more. Values beyond can only be saved. This
bounds the planning time, and keeps a value from being recomputed in many windows."""

_LOSS_LENGTH = 48
"""The length of the loss's window in operations, about."""


def split(forward: ForwardValues, length: int, *, loss_apart: bool = False) -> list[range]:
    """Divides the block, from its first backward operation on, into windows of about ``length``.

    A window ends where the fewest bytes of forward values are read both before and after the end.
    With ``loss_apart`` the first window is short: it covers the backward pass of the loss, whose
    forward values have short live ranges.
    """
    end = len(forward.graph.ops)
    start = next((p for p, backward in enumerate(forward.backward) if backward), end)
    crossing = _crossing(forward)
    bounds = [start]
    ahead = min(length, _LOSS_LENGTH) if loss_apart else length
    while end - bounds[-1] > 3 * ahead // 2:
        nearest, farthest = bounds[-1] + max(ahead // 2, 1), bounds[-1] + 3 * ahead // 2
        aim = bounds[-1] + ahead
        bounds.append(
            min(range(nearest, farthest + 1), key=lambda p: (crossing[p], abs(p - aim), p))
        )
        ahead = length
    return [range(first, stop) for first, stop in pairwise([*bounds, end])]


def _crossing(forward: ForwardValues) -> list[int]:
    """By position, the bytes of forward values with backward reads before and at or after it."""
    change = [0] * (len(forward.graph.ops) + 1)
    for value in forward.sinks:
        first, last = forward.reads[value][0], forward.reads[value][-1]
        change[first + 1] += forward.weights[value]
        change[last + 1] -= forward.weights[value]
    for position in range(1, len(change)):
        change[position] += change[position - 1]
    return change


@dataclass(frozen=True)
class PriceSchedule:
    """Rates by the position of a value's producer: ``early``, and ``late`` from ``border`` on."""

    early: Rates
    late: Rates
    border: int

    @classmethod
    def flat(cls, rates: Rates) -> PriceSchedule:
        """The same rates at all positions."""
        return cls(rates, rates, 0)

    def prices(self, forward: ForwardValues) -> list[int]:
        """By value, the price of recomputing it in bytes."""
        late = forward.prices(self.late)
        if self.border == 0:
            return late
        producers, early = forward.graph.producers, forward.prices(self.early)
        return [
            late[value] if producer >= self.border else early[value]
            for value, producer in enumerate(producers)
        ]


def keep(
    forward: ForwardValues,
    windows: Sequence[range],
    price_schedules: Sequence[PriceSchedule],
    solved: Solved | None = None,
) -> frozenset[int]:
    """The values to save, with the price schedule of each window.

    ``solved`` caches cuts; new ones are added.
    """
    kept: set[int] = set()
    solved = {} if solved is None else solved
    prices = {
        price_schedule: price_schedule.prices(forward)
        for price_schedule in dict.fromkeys(price_schedules)
    }
    for window, price_schedule in reversed(list(zip(windows, price_schedules, strict=True))):
        values, problem = _problem(forward, window, prices[price_schedule], kept)
        if problem not in solved:
            solved[problem] = problem.solve()
        kept.update(values[number] for number in solved[problem])
    return frozenset(kept)


@dataclass(frozen=True)
class _Problem:
    """The cut problem of one window, its values numbered from the sinks on.

    Equal layers then have equal problems.
    """

    weights: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    sources: tuple[int, ...]
    sinks: tuple[int, ...]
    prices: tuple[tuple[int, int], ...]

    def solve(self) -> frozenset[int]:
        """The numbers of the values to save."""
        most = sum(self.weights) + 1
        prices = {number: min(price, most) for number, price in self.prices}
        return minimum_vertex_cut(self.weights, self.edges, self.sources, self.sinks, prices)


Solved = dict[_Problem, frozenset[int]]
"""Solved cuts: layers are alike, and candidates share the prices of many windows."""


def _problem(
    forward: ForwardValues, window: range, price: Sequence[int], kept: set[int]
) -> tuple[list[int], _Problem]:
    """A window's cut problem, with what other windows save; and its values by number."""
    sinks = forward.sinks_of(window)
    reached = _reached(forward, sinks, kept)
    numbers = {value: number for number, value in enumerate(reached)}
    weights: list[int] = []
    sources: list[int] = []
    edges: list[tuple[int, int]] = []
    prices: list[tuple[int, int]] = []
    for number, (value, recomputable) in enumerate(reached.items()):
        weights.append(0 if value in kept else forward.weights[value])
        if recomputable:
            prices.append((number, price[value]))
            edges += [(numbers[read], number) for read in forward.made_of[value]]
        else:
            sources.append(number)
    wanted = tuple(numbers[value] for value in sinks)
    problem = _Problem(tuple(weights), tuple(edges), tuple(sources), wanted, tuple(prices))
    return list(reached), problem


def _reached(forward: ForwardValues, sinks: Sequence[int], kept: set[int]) -> dict[int, bool]:
    """The values from which the sinks are computed, nearest first, and which are recomputable."""
    most = max(_SMALLEST_SEARCH, _SEARCH_SHARE * len(sinks))
    reached: dict[int, bool] = {}
    queue = list(sinks)
    for value in queue:  # grows while it is walked
        if value in reached:
            continue
        recomputable = len(reached) < most and forward.recomputable[value] and value not in kept
        reached[value] = recomputable
        if recomputable:
            queue += forward.made_of[value]
    return reached
