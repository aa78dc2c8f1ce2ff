"""The aim of a plan: a bound on temporary memory, and what is known of plans that were compiled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .candidates import Candidate
from .comparison import INDISTINCT, cheapest, corrected_bytes
from .record import Estimate, Measurement
from .variants import moves_of

ALIKE = INDISTINCT - 1
"""Plans whose memory differs by at most this share are taken to have the same peak."""


@dataclass(frozen=True)
class Aim:
    """A bound that a plan has to hold, and which estimates are expected to hold it.

    Attributes:
      limit_bytes: the temporary memory that the budget leaves.
      tried: the plans that were compiled, with XLA's figures, oldest first.
      share: the share of the limit that a plan is to take.
    """

    limit_bytes: float
    tried: Sequence[Measurement] = ()
    share: float = 1.0
    _known: dict[tuple[Candidate | None, int], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def aim_bytes(self) -> float:
        """Returns the temporary memory that a plan is to take at most."""
        return self.limit_bytes * self.share

    def expected_bytes(self, estimate: Estimate) -> float:
        """Returns the memory of an estimate, corrected by XLA's figures of all compiled plans."""
        return corrected_bytes(estimate, self.tried)

    def alike_bytes(self, estimate: Estimate) -> float:
        """Returns the memory of an estimate, corrected by the compiled plans with its moves."""
        moves = moves_of(estimate)
        return corrected_bytes(estimate, [e for e in self.tried if moves_of(e.estimate) == moves])

    def fits(self, estimate: Estimate) -> bool:
        """Whether an estimate is expected to hold."""
        key = estimate.candidate, estimate.temp_bytes
        if key not in self._known:
            self._known[key] = self._fits(estimate)
        return self._known[key]

    def best(self, estimates: Iterable[Estimate]) -> Estimate | None:
        """Returns the cheapest estimate that is expected to hold; None where none is."""
        return cheapest(filter(self.fits, estimates))

    def _fits(self, estimate: Estimate) -> bool:
        # The unmodified program needs no second plan where it turns out too large.
        bound = self.limit_bytes if estimate.candidate is None else self.aim_bytes
        if self.expected_bytes(estimate) > bound:
            return False
        return not any(self._misses_like(one, estimate) for one in self.tried)

    def _misses_like(self, one: Measurement, estimate: Estimate) -> bool:
        """Whether an estimate takes as much as a plan that exceeds the limit in XLA.

        The two most likely have the same peak, whatever else is recomputed, and the same ratio to
        XLA's figure.
        """
        missed_bytes = one.estimate.temp_bytes
        if one.real_bytes <= self.limit_bytes or not missed_bytes:
            return False
        is_alike = math.isclose(missed_bytes, estimate.temp_bytes, rel_tol=ALIKE)
        return is_alike and estimate.temp_bytes * one.real_bytes / missed_bytes > self.limit_bytes
