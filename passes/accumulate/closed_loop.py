"""The number of microbatches for a budget: by the model at first, then by XLA's figures.

Memory falls with the number, so that numbers that hold the budget and numbers that do not bracket
the least one that does. Where sums take more than they save it does not: then no number holds what
the step as it is does not, and the one that takes the least is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..budgeted import INDISTINCT
from ..framework.feedback import Attempt
from .record import AccumulateRecord

Attempts = Sequence[Attempt[AccumulateRecord]]


class Correction:
    """The temporary memory that a number of microbatches is expected to take.

    The ratio between XLA's figure and the model's is much the same for numbers that are near.
    """

    def __init__(self, model: Callable[[int], int], attempts: Attempts) -> None:
        self._model = model
        self._real = {each.record.microbatches: each.temp_bytes for each in attempts}

    def __call__(self, number: int) -> float:
        if number in self._real:
            return self._real[number]
        expected = float(self._model(number))
        if self._real:
            near = min(self._real, key=lambda tried: abs(math.log(tried / number)))
            expected *= self._real[near] / max(self._model(near), 1)
        return expected


def bracket(possible: Sequence[int], attempts: Attempts, limit: int) -> list[int]:
    """The numbers, ascending, of which any may be the least that holds the limit."""
    tried = {each.record.microbatches: each.temp_bytes <= limit for each in attempts}
    above = max((number for number, holds in tried.items() if not holds), default=0)
    below = min((number for number, holds in tried.items() if holds), default=math.inf)
    return [number for number in possible if above < number < below]


def first_that_holds(numbers: Sequence[int], expected: Correction, limit: int) -> int | None:
    """The least number that is expected to hold, found by bisection."""
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
    """The number to compile next; one that was compiled where no other is better."""
    open_ = bracket(possible, attempts, limit)
    found = first_that_holds(open_, expected, limit)
    if found is not None:
        return found
    held = [each.record.microbatches for each in attempts if each.temp_bytes <= limit]
    if held:
        return min(held)
    falls = bool(open_) and expected(open_[-1]) <= expected(open_[0])
    return open_[-1] if falls else least_number(possible, expected)


def least_number(possible: Sequence[int], expected: Correction) -> int:
    """The number that takes the least memory; of those like it the smallest."""
    least = min(map(expected, possible))
    return next(number for number in possible if expected(number) <= least * INDISTINCT)


def is_worthwhile(attempts: Attempts, limit: int) -> bool:
    """Whether one more compile may hold the limit, or hold it with fewer microbatches."""
    record = attempts[-1].record
    open_ = bracket(record.possible, attempts, limit)
    if not open_:
        return False
    if all(each.temp_bytes > limit for each in attempts):
        return True
    modelled = dict(record.modelled)
    known = [number for number in open_ if number in modelled]
    expected = Correction(modelled.__getitem__, attempts)
    return any(expected(number) <= limit for number in known)
