"""Finding the setting that meets a bound on memory at the least added time."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hloom.passes.remat.budget.estimate import Model, Outcome
from hloom.passes.remat.budget.price_grid import EXPENSIVE_RUNGS, FINE, RUNGS, Setting

_LONGEST_LEAD = 4

_FINE_STEPS = 4
"""Settings that are left for the steps between rungs, where not many may be tried."""

_EVEN_STEPS = 3
"""How many steps are looked for as if memory grew evenly from one rung to the next."""

_KEPT_SHARE = 0.75
"""The share of the peak that kept values mostly are."""

_FLOOR_RUNGS = (0, 12, 8, 4, 16, 24, 20)
"""Rungs that are tried for the least memory, in this order; and around the best of them those
between."""

_FAR = 1.5
"""Between two rungs that both take so many times the least memory nothing is looked for."""


@dataclass(frozen=True)
class Tried:
    """A setting that was compiled, and the temporary memory XLA gave it."""

    outcome: Outcome
    real_bytes: int


_MOST_WORK, _MOST_WORK_IF_LONG, _FEWEST = 1_000_000, 500_000, 6
"""How many operations are simulated for one plan, all settings together, and the number of settings
that are always allowed: so that planning stays short where programs are long. One operation takes 6
to 8 microseconds on one core of a server, so that 500,000 take 4 seconds; a few settings are tried
beyond that, to end a search with something that fits, and all is to be done in 10 seconds."""


class Search:
    """Looks for settings; remembers every outcome it has seen, in order."""

    def __init__(self, model: Model, known: Iterable[Outcome] = ()) -> None:
        self.model = model
        most = _MOST_WORK_IF_LONG if model.is_long else _MOST_WORK
        self.left = max(_FEWEST, most // max(len(model.operations), 1))
        """How many more settings may be tried, about."""
        self.outcomes: dict[Setting | None, Outcome] = {o.setting: o for o in known}

    def outcome(self, setting: Setting | None) -> Outcome:
        """What the model says of a setting, asked once."""
        if setting not in self.outcomes:
            self.left -= 1
            self.outcomes[setting] = self.model.outcome(setting)
        return self.outcomes[setting]

    def within(
        self, limit_bytes: float, fits: Callable[[Outcome], bool], tried: Sequence[Tried] = ()
    ) -> None:
        """Tries settings around where outcomes begin to fit in about ``limit_bytes``.

        ``fits`` says whether one does; it is to hold for less memory where it holds for more.
        ``tried`` corrects what the model says of memory.
        """
        lengths = self.model.lengths()
        if fits(self.outcome(None)) or not lengths:
            return
        guess = self._guess(lengths[0], limit_bytes)
        best: tuple[float, int, int] | None = None
        for length in lengths:
            wanted = 0
            if best and (self.model.seconds(Setting(length, guess * FINE)), -length) > best[:2]:
                wanted = guess + 1  # as far down as there it would cost more than the best
            rung = self._highest(length, fits, max(guess, wanted), wanted)
            if rung is None:
                continue
            guess = rung
            found = self._at(length, rung, 0).seconds, -length, rung
            best = min(best or found, found)
            if rung >= EXPENSIVE_RUNGS or self.left <= _FINE_STEPS:
                break  # where only cheap work is repeated, the windows matter little
        if best:
            _, negative, rung = best
            self._between(-negative, rung, fits, limit_bytes, tried)
            self._lead(fits)

    def _guess(self, length: int, limit_bytes: float) -> int:
        """About the highest rung that fits, by what is kept alone."""
        low, high = 0, RUNGS
        while high - low > 1:
            middle = (low + high) // 2
            if self.model.kept_bytes(Setting(length, middle * FINE)) <= limit_bytes * _KEPT_SHARE:
                low = middle
            else:
                high = middle
        return low

    def lowest(self) -> list[Outcome]:
        """Settings with little memory: the same ones whatever was tried before."""
        grid = self._grid()
        lowest = min(grid, key=lambda one: (one.temp_bytes, one.seconds), default=None)
        if lowest is not None and lowest.setting is not None and self.left > 0:
            middle = lowest.setting.step // FINE
            for rung in (middle - 2, middle + 2):
                grid.append(self._at(lowest.setting.length, max(rung, 0), 0))
            if lowest.setting.length:
                grid.append(self.outcome(dataclasses.replace(lowest.setting, lead=1)))
        return [self.outcome(None), *grid]

    def _grid(self) -> list[Outcome]:
        """Outcomes for each length, at the rungs where they may take less than the others."""
        grid: list[Outcome] = []
        ceiling = EXPENSIVE_RUNGS
        for length in self.model.lengths():
            column: dict[int, Outcome] = {}
            for rung in _FLOOR_RUNGS if self.left > 0 else _FLOOR_RUNGS[:1]:
                least = min((one.temp_bytes for one in (*grid, *column.values())), default=math.inf)
                if rung >= ceiling or self._is_far(rung, column, least):
                    continue
                if self.model.kept_bytes(Setting(length, rung * FINE)) > least:
                    ceiling = rung  # with windows of other lengths no less is kept
                    continue
                column[rung] = self._at(length, rung, 0)
            grid += column.values()
        return grid

    def _is_far(self, rung: int, column: Mapping[int, Outcome], least_bytes: float) -> bool:
        """Whether it is not worth trying a rung for less memory, by those that it is between."""
        below = max((other for other in column if other < rung), default=None)
        above = min((other for other in column if other > rung), default=None)
        if below is None or above is None:
            return False
        one, other = column[below], column[above]
        if self.model.are_alike(one.setting, other.setting):
            return True
        return min(one.temp_bytes, other.temp_bytes) > least_bytes * _FAR

    def _lead(self, fits: Callable[[Outcome], bool]) -> None:
        """Tries whether the first windows need not recompute what is expensive."""
        best = cheapest(outcome for outcome in self.outcomes.values() if fits(outcome))
        if best is None or best.setting is None or not best.setting.length:
            return
        lead = 1
        while best.setting.step < EXPENSIVE_RUNGS * FINE and lead <= _LONGEST_LEAD:
            setting = dataclasses.replace(best.setting, lead=lead)
            if self.model.seconds(setting) < best.seconds and not fits(self.outcome(setting)):
                break
            lead *= 2

    def _at(self, length: int, rung: int, fine: int) -> Outcome:
        return self.outcome(Setting(length, rung * FINE + fine))

    def _highest(
        self, length: int, fits: Callable[[Outcome], bool], guess: int, wanted: int
    ) -> int | None:
        """The highest rung that fits, from the ``wanted`` one on, looked for near a guess."""

        def holds(rung: int) -> bool:
            return fits(self._at(length, rung, 0))

        if self.model.is_long and self.left <= 0:
            return 0 if wanted == 0 and holds(0) else None
        low, high, width = wanted - 1, RUNGS, 1
        if holds(guess):
            low = guess
            while low + width < RUNGS and holds(low + width):
                low, width = low + width, 2 * width
            high = min(low + width, RUNGS)
        else:
            high = guess
            while high - width >= wanted and not holds(high - width):
                high, width = high - width, 2 * width
            low = max(high - width, wanted - 1)
        while high - low > 1 and (self.left > 0 or low < 0):
            middle = (low + high) // 2
            if holds(middle):
                low = middle
            else:
                high = middle
        return low if low >= wanted else None

    def _between(
        self,
        length: int,
        rung: int,
        fits: Callable[[Outcome], bool],
        limit_bytes: float,
        tried: Sequence[Tried],
    ) -> None:
        """Tries steps from one rung to the next: where memory grows evenly few, else by halves."""

        def missing(fine: int) -> float:
            return limit_bytes - corrected_bytes(self._at(length, rung, fine), tried)

        even = Setting(length, (rung + 1) * FINE) in self.outcomes
        low, high = 0, FINE
        for number in itertools.count():
            if high - low <= 1 or self.left <= 0:
                break
            middle = (low + high) // 2
            if number == 1 and low and self.model.pairs and 2 * missing(low) > missing(0):
                middle = FINE - 1  # what loops stack grows in large steps: the last one may fit
            elif even and number < _EVEN_STEPS:
                middle = _evenly_between(low, high, missing(low), missing(high))
            if fits(self._at(length, rung, middle)):
                low = middle
            else:
                high = middle


def _evenly_between(low: int, high: int, below: float, above: float) -> int:
    """The last step before nothing is missing, if what is missing falls evenly, from ``below``."""
    share = below / (below - above) if below > above else 0.5
    return min(max(low + int(share * (high - low)), low + 1), high - 1)


def cheapest(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The outcome of least added time; of several, the one with the longest windows."""
    return min(outcomes, key=_cost, default=None)


def _cost(outcome: Outcome) -> tuple[float, int, int]:
    setting = outcome.setting
    if setting is None:
        return 0.0, 0, 0
    return outcome.seconds, -setting.length, -setting.step


def corrected_bytes(outcome: Outcome, tried: Sequence[Tried]) -> float:
    """The temporary memory to expect of an outcome, given what XLA made of others.

    The model is off by much the same ratio for settings that are alike.
    """
    if not tried:
        return outcome.temp_bytes
    nearest = min(tried, key=lambda other: _distance(outcome, other.outcome))
    if nearest.outcome.setting == outcome.setting:
        return nearest.real_bytes
    return outcome.temp_bytes * nearest.real_bytes / max(nearest.outcome.temp_bytes, 1)


def _distance(one: Outcome, other: Outcome) -> float:
    distance = abs(math.log(max(one.temp_bytes, 1) / max(other.temp_bytes, 1)))
    if one.setting is None or other.setting is None:
        return distance + (one.setting != other.setting)
    return distance + 0.5 * (one.setting.length != other.setting.length)
