"""Chooses the number of microbatches for a budget: by the model first, then by XLA's figures.

Memory falls with the number, so that numbers that hold the budget and numbers that do not bracket
the least one that does. It does not fall where sums take more than they save: then no number holds
a budget that the unmodified step misses, and the number that takes the least is used.

Work that a step may do once instead of with each microbatch (`Once`) takes memory too. It does not
change the number: with the chosen number, as much is done once as holds the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ..budgeted import INDISTINCT
from ..framework.feedback import Attempt
from .record import AccumulateRecord, Once

Attempts = Sequence[Attempt[AccumulateRecord]]


class Correction:
    """Predicts the temporary memory of a number of microbatches.

    The ratio between XLA's figure and the model's is similar for numbers that are near.
    """

    def __init__(
        self,
        model: Callable[[int], int],
        attempts: Attempts,
        added: Mapping[Once, int] | None = None,
    ) -> None:
        """``added`` is the memory that each kind of work takes that may be done once."""
        self._model = model
        self.added = added or {Once.NOTHING: 0}
        self.least_once = min(self.added)
        self._real = {
            (each.record.microbatches, self._once(each)): each.temp_bytes for each in attempts
        }

    def __call__(self, number: int, once: Once | None = None) -> float:
        """Predicts the memory of a number, with the least done once unless ``once`` is given."""
        choice = number, self.least_once if once is None else once
        if choice in self._real:
            return self._real[choice]
        expected = float(self._modelled(*choice))
        if self._real:
            near = min(
                self._real,
                key=lambda tried: (abs(math.log(tried[0] / number)), abs(tried[1] - choice[1])),
            )
            ratio = self._real[near] / max(self._modelled(*near), 1)
            # Work that was done once may be the cause of the larger figure.
            expected *= min(ratio, 1.0) if near[1] > choice[1] else ratio
        return expected

    def _once(self, attempt: Attempt[AccumulateRecord]) -> Once:
        """Returns the work that an attempt does once; the unmodified step does none."""
        return max(attempt.record.once, self.least_once)

    def _modelled(self, number: int, once: Once) -> int:
        return self._model(number) + (self.added[once] if number > 1 else 0)


def bracket(possible: Sequence[int], attempts: Attempts, limit: int) -> list[int]:
    """Returns the numbers, ascending, of which any may be the least that holds the limit.

    A number that misses it with more work done once than necessary is among them.
    """
    tried = {
        each.record.microbatches: each.temp_bytes <= limit
        for each in sorted(attempts, key=lambda each: -each.record.once)
        if each.record.once == _least_once(each) or each.temp_bytes <= limit
    }
    above = max((number for number, holds in tried.items() if not holds), default=0)
    below = min((number for number, holds in tried.items() if holds), default=math.inf)
    return [number for number in possible if above < number < below]


def first_that_holds(numbers: Sequence[int], expected: Correction, limit: int) -> int | None:
    """Returns the least number that is expected to hold, found by bisection."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if expected(numbers[middle]) <= limit:
            high = middle
        else:
            low = middle + 1
    return numbers[low] if low < len(numbers) else None


def next_number(
    possible: Sequence[int], expected: Correction, attempts: Attempts, limit: int
) -> int:
    """Returns the number to compile next; one that was compiled where no other is better."""
    open_ = bracket(possible, attempts, limit)
    found = first_that_holds(open_, expected, limit)
    if found is not None:
        return found
    held = [each.record.microbatches for each in attempts if each.temp_bytes <= limit]
    if held:
        return min(held)
    falls = bool(open_) and expected(open_[-1]) <= expected(open_[0])
    return open_[-1] if falls else least_number(possible, expected)


def next_once(number: int, expected: Correction, limit: int) -> Once:
    """Returns the work done once with a number of microbatches: as much as is expected to hold."""
    if number == 1:
        return Once.NOTHING
    holding = [once for once in expected.added if expected(number, once) <= limit]
    return max(holding, default=expected.least_once)


def _least_once(attempt: Attempt[AccumulateRecord]) -> Once:
    """Returns the least work that an attempt could have done once."""
    record = attempt.record
    if record.is_unmodified:
        return Once.NOTHING
    return min((once for once, _ in record.added), default=record.once)


def least_number(possible: Sequence[int], expected: Correction) -> int:
    """Returns the number that takes the least memory; the smallest of similar ones."""
    least = min(map(expected, possible))
    return next(number for number in possible if expected(number) <= least * INDISTINCT)


def is_worthwhile(attempts: Attempts, limit: int) -> bool:
    """Whether one more compile may hold the limit, or hold it with fewer microbatches."""
    record = attempts[-1].record
    open_ = bracket(record.possible, attempts, limit)
    held = [each.record for each in attempts if each.temp_bytes <= limit]
    if not held:
        return bool(open_)
    modelled = dict(record.modelled)
    known = [number for number in open_ if number in modelled]
    expected = Correction(modelled.__getitem__, attempts, dict(record.added))
    if any(expected(number) <= limit for number in known):
        return True
    best = min(held, key=lambda each: each.cost)
    return best.microbatches in modelled and (
        next_once(best.microbatches, expected, limit) > best.once
    )
