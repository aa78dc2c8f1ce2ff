"""The candidates that the planner tries, and what recomputation is worth at each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hloom.passes.remat.budget.pricing import Rates

_PRICES_PER_DOUBLING = 2
_LOWEST, _HIGHEST, _LAST = -10, 2, 6
"""Rates as powers of two, times the bytes that the program makes a second: the lowest of all, the
highest for expensive work, beyond which it is not repeated at all, and the last for cheap work."""

EXPENSIVE_PRICES = (_HIGHEST - _LOWEST) * _PRICES_PER_DOUBLING + 1
"""From this rung on only cheap work is repeated."""

PRICES = (_LAST - _LOWEST) * _PRICES_PER_DOUBLING + 1
"""How many prices are tried."""

STEPS = 32
"""Steps from one rung to the next."""


@dataclass(frozen=True, order=True)
class Candidate:
    """What the planner chooses: how long windows are, and the price of a second of recomputation.

    Attributes:
      window_length: operations of the backward pass in a window; 0 leaves straight lines as they
        are.
      price: from 0, where memory is all that counts, to ``PRICES * STEPS``; between two rungs
        what is made late in the forward pass, and so is kept for a short time, has the upper price.
      cheap_prefix: how many windows that run first recompute cheap work only. What they would
        recompute for themselves is mostly alive at the same time where it is kept.
    """

    window_length: int
    price: int
    cheap_prefix: int = 0

    @property
    def price_index(self) -> int:
        return self.price // STEPS

    @property
    def step(self) -> int:
        """Steps above the rung."""
        return self.price % STEPS


@dataclass(frozen=True)
class PriceGrid:
    """The rates of each rung. ``middle_rate`` is the bytes that the program makes a second."""

    middle_rate: float

    def rates(self, price_index: int) -> Rates:
        """One rate for all work until expensive work is out, then one for cheap work alone."""
        rate = self.middle_rate * 2.0 ** (_LOWEST + price_index / _PRICES_PER_DOUBLING)
        return Rates(rate if price_index < EXPENSIVE_PRICES else math.inf, rate)
