"""The candidates that the planner tries, and what recomputation is worth at each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hloom.passes.remat.budget.pricing import Rates

_RUNGS_PER_DOUBLING = 2
_LOWEST, _HIGHEST, _LAST = -10, 2, 6
"""Rates as powers of two, times the bytes that the program makes a second: the lowest of all, the
highest for expensive work, beyond which it is not repeated at all, and the last for cheap work."""

EXPENSIVE_RUNGS = (_HIGHEST - _LOWEST) * _RUNGS_PER_DOUBLING + 1
"""From this rung on only cheap work is repeated."""

RUNGS = (_LAST - _LOWEST) * _RUNGS_PER_DOUBLING + 1
"""How many prices are tried."""

FINE = 32
"""Steps from one rung to the next."""


@dataclass(frozen=True, order=True)
class Candidate:
    """What the planner turns: how long windows are, and how dear a second of recomputation is.

    Attributes:
      length: operations of the backward pass in a window; 0 leaves straight lines as they are.
      step: from 0, where memory is all that counts, to ``RUNGS * FINE``; between two rungs what is
        made late in the forward pass, and so is kept for a short time, has the upper price.
      lead: how many windows that run first recompute cheap work only. What they would recompute
        for themselves is mostly alive at the same time where it is kept.
    """

    length: int
    step: int
    lead: int = 0

    @property
    def rung(self) -> int:
        return self.step // FINE

    @property
    def fine(self) -> int:
        """Steps above the rung."""
        return self.step % FINE


@dataclass(frozen=True)
class Ladder:
    """The rates of each rung. ``middle_rate`` is the bytes that the program makes a second."""

    middle_rate: float

    def rates(self, rung: int) -> Rates:
        """One rate for all work until expensive work is out, then one for cheap work alone."""
        rate = self.middle_rate * 2.0 ** (_LOWEST + rung / _RUNGS_PER_DOUBLING)
        return Rates(rate if rung < EXPENSIVE_RUNGS else math.inf, rate)
