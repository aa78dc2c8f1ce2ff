"""The backward pass in windows, and what is kept so that each can compute again what it reads.

Within a window a value is computed again at most once; from one window to the next only kept values
live on, so that the length of the windows bounds what recomputed values hold at one time. Each
window is cut by itself, from the one that runs last (the first layers) to the one that runs first,
and what one keeps is free for the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hloom.passes.analysis.mincut import minimum_vertex_cut
from hloom.passes.remat.forward import Forward
from hloom.passes.remat.pricing import Rates

_SMALLEST_SEARCH, _SEARCH_SHARE = 256, 4
"""How many forward values a window looks back through: this many, or this many times its reads
where that is more. What lies beyond can only be kept. It bounds the work, of planning and of the
program: no value is recomputed for many windows."""

_LOSS_LENGTH = 48
"""Positions of a window for the loss, about."""


def split(forward: Forward, length: int, *, loss_apart: bool = False) -> list[range]:
    """Windows of about ``length`` positions each, over the block from its first backward operation.

    A window ends where the fewest bytes of forward values are read both before and after. With
    ``loss_apart`` the first one is short: it is the loss's, whose forward values live only from the
    end of the forward pass to its beginning.
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


def _crossing(forward: Forward) -> list[int]:
    """For each position the bytes of forward values that are read before it, and at or after it."""
    change = [0] * (len(forward.graph.ops) + 1)
    for value in forward.sinks:
        first, last = forward.reads[value][0], forward.reads[value][-1]
        change[first + 1] += forward.weights[value]
        change[last + 1] -= forward.weights[value]
    for position in range(1, len(change)):
        change[position] += change[position - 1]
    return change


@dataclass(frozen=True)
class Tariff:
    """Rates by where in the forward pass a value is made: ``late`` from position ``border`` on."""

    early: Rates
    late: Rates
    border: int

    @classmethod
    def flat(cls, rates: Rates) -> Tariff:
        """One rate for all."""
        return cls(rates, rates, 0)

    def price(self, forward: Forward, value: int) -> int:
        """Bytes that computing the value again is worth."""
        late = forward.graph.producers[value] >= self.border
        return forward.price(value, self.late if late else self.early)


def keep(forward: Forward, windows: Sequence[range], tariffs: Sequence[Tariff]) -> frozenset[int]:
    """The values to keep, at the rates of each of the windows."""
    kept: set[int] = set()
    solved: dict[_Problem, frozenset[int]] = {}
    for window, tariff in reversed(list(zip(windows, tariffs, strict=True))):
        values, problem = _problem(forward, window, tariff, kept)
        if problem not in solved:
            solved[problem] = problem.solve()
        kept.update(values[number] for number in solved[problem])
    return frozenset(kept)


@dataclass(frozen=True)
class _Problem:
    """One window's cut, its values numbered from the sinks on, so that equal layers are equal."""

    weights: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    sources: tuple[int, ...]
    sinks: tuple[int, ...]
    prices: tuple[tuple[int, int], ...]

    def solve(self) -> frozenset[int]:
        """The numbers of the values to keep."""
        most = sum(self.weights) + 1
        prices = {number: min(price, most) for number, price in self.prices}
        return minimum_vertex_cut(self.weights, self.edges, self.sources, self.sinks, prices)


def _problem(
    forward: Forward, window: range, tariff: Tariff, kept: set[int]
) -> tuple[list[int], _Problem]:
    """What one window is to keep beside what is kept already, and the values by number."""
    graph = forward.graph
    sinks = [
        value
        for value in dict.fromkeys(v for p in window for v in graph.operands[p])
        if not forward.constant[value] and not _is_gradient(forward, value)
    ]
    numbers = _reached(forward, sinks, kept)
    weights: list[int] = []
    sources: list[int] = []
    edges: list[tuple[int, int]] = []
    prices: list[tuple[int, int]] = []
    for value, (number, recomputable) in numbers.items():
        weights.append(0 if value in kept else forward.weights[value])
        if not recomputable:
            sources.append(number)
            continue
        prices.append((number, tariff.price(forward, value)))
        edges += [
            (numbers[read][0], number)
            for read in graph.operands[graph.producers[value]]
            if not forward.constant[read]
        ]
    wanted = tuple(numbers[value][0] for value in sinks)
    problem = _Problem(tuple(weights), tuple(edges), tuple(sources), wanted, tuple(prices))
    return list(numbers), problem


def _reached(forward: Forward, sinks: Sequence[int], kept: set[int]) -> dict[int, tuple[int, bool]]:
    """Values that the sinks can be made of, nearest first: number, and whether recomputable."""
    graph = forward.graph
    most = max(_SMALLEST_SEARCH, _SEARCH_SHARE * len(sinks))
    numbers: dict[int, tuple[int, bool]] = {}
    queue = deque(sinks)
    while queue:
        value = queue.popleft()
        if value in numbers:
            continue
        near = len(numbers) < most
        recomputable = near and forward.recomputable[value] and value not in kept
        numbers[value] = (len(numbers), recomputable)
        if recomputable:
            queue += [
                read
                for read in graph.operands[graph.producers[value]]
                if not forward.constant[read]
            ]
    return numbers


def _is_gradient(forward: Forward, value: int) -> bool:
    producer = forward.graph.producers[value]
    return producer >= 0 and forward.backward[producer]
