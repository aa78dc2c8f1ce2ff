"""The planner's settings, its candidates, and the recomputation rate at each price."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from ..analysis.pricing import Rates
from ..framework.options import Budget
from ..framework.structure import Condition

_PRICES_PER_DOUBLING = 2
_LOWEST, _HIGHEST, _LAST = -10, 2, 6
"""Rates as powers of two, times the bytes that the program produces in a second: the lowest rate,
the highest one for expensive work, above which it is not recomputed, and the highest for cheap
work."""

EXPENSIVE_PRICES = (_HIGHEST - _LOWEST) * _PRICES_PER_DOUBLING + 1
"""From this price index on only cheap work is recomputed."""

PRICES = (_LAST - _LOWEST) * _PRICES_PER_DOUBLING + 1
"""The number of grid prices."""

STEPS = 32
"""Steps from one grid price to the next."""

PARTS = 4096
"""Peaks of the abstract machine are multiples of this part of the unmodified block's."""

TOP = PRICES * STEPS
"""The price at which nothing is recomputed."""


@dataclass(frozen=True)
class PlannerSettings:
    """The settings of the planner.

    Attributes:
      budget: the budget to hold.
      compiles: the most attempts.
      moves: the allowed moves, by their names in `moves.MOVES`.
      min_bytes: values smaller than this, and stacks in whole, are not recomputed.
      behind: the spec of later passes that change the memory and time of a step, with which
        candidates are priced.
    """

    budget: Budget = field(default_factory=Budget)
    compiles: int = 5
    moves: tuple[str, ...] = ("recompute",)
    min_bytes: int = 0
    behind: str = ""


_Price = Annotated[int, Condition(f"a price from 0 to {TOP}", lambda price: 0 <= price <= TOP)]
_Length = Annotated[int, Condition("a whole number from 0 to 2^31", lambda n: 0 <= n < 2**31)]


@dataclass(frozen=True, order=True)
class Candidate:
    """A choice of the planner: the length of windows, and the price of a second of recomputation.

    Attributes:
      window_length: operations of the backward pass in a window; 0 leaves straight-line blocks
        unchanged.
      price: from 0, where only memory counts, to ``PRICES * STEPS``; between two grid prices,
        values produced late in the forward pass, whose live ranges are short, have the upper one.
      cheap_prefix: the number of windows, of those that run first, that recompute cheap work only.
        Most of what they would recompute is in memory at that time in any case.
      segmented: a window recomputes no more than the part of the code that mirrors it.
      nested: there are windows after each border of a block, not only after the highest one.
      evicted_to: for a plan by evictions, which has windows and saved values of its own, the peak
        of the abstract machine that it holds, in parts of the unmodified one, `PARTS` being all; 0
        for a plan by window length and price.
      moves: the passes that `fit` runs before, as a spec; the other fields are for the module after
        them.
    """

    window_length: _Length
    price: _Price
    cheap_prefix: _Length = 0
    segmented: bool = False
    nested: bool = False
    evicted_to: _Length = 0
    moves: str = ""

    @classmethod
    def of_moves(cls, moves: str) -> Candidate:
        """Returns the candidate that makes these moves and recomputes nothing."""
        return cls(0, TOP, moves=moves)

    @property
    def recomputes(self) -> bool:
        """Whether anything may be recomputed: not at the price of the moves alone."""
        return self.price < TOP or self.evicted_to > 0

    @property
    def price_index(self) -> int:
        return self.price // STEPS

    @property
    def step(self) -> int:
        """Returns the steps above the grid price."""
        return self.price % STEPS


@dataclass(frozen=True)
class PriceGrid:
    """The rates of the grid prices; ``middle_rate`` is bytes the program makes per second."""

    middle_rate: float

    def rates(self, price_index: int) -> Rates:
        """Returns one rate for all work; from EXPENSIVE_PRICES on infinite for expensive work."""
        rate = self.middle_rate * 2.0 ** (_LOWEST + price_index / _PRICES_PER_DOUBLING)
        return Rates(rate if price_index < EXPENSIVE_PRICES else math.inf, rate)
