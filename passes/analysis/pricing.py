"""The price of recomputing an operation, in bytes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..framework.target import Speed
from ..ir.shardings import CONSTRAINT
from ..ir.types import TensorSizes
from .cost import repeat_seconds
from .purity import is_cheap
from .shardings.exchanged import Exchanged

NEVER = 2**60
"""More bytes than any device has: the price of work that must not be recomputed."""


CHEAP_SHARE = 1 / 16
"""The weight of a second of cheap work; expensive work has weight 1."""


@dataclass(frozen=True)
class Rates:
    """Prices of a second of recomputation in bytes, for expensive and for cheap work."""

    expensive: float
    cheap: float


@dataclass(frozen=True)
class Pricing:
    """Prices of recomputation: seconds on one device times a rate in bytes per second.

    A second of cheap work counts by a share. Cheap work mostly runs inside kernels that run in any
    case, so that its roofline is an upper bound; and a matrix product should not be recomputed to
    avoid a few passes over memory.

    Exchanges that are repeated with an operation are part of its price, and count in full: an
    operation with an exchange is expensive.

    ``sizes`` are those of values on a device, ``exchanged`` the exchanges of the devices. The
    seconds of operations are cached, and pricings made by ``at`` share the cache.
    """

    speed: Speed
    rates: Rates = Rates(1.0, 1.0)
    _known: dict[ir.Operation, tuple[bool, float]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _roofline_seconds: dict[ir.Operation, float] = field(
        default_factory=dict, repr=False, compare=False
    )
    sizes: TensorSizes = field(default_factory=TensorSizes, repr=False, compare=False)
    exchanged: Exchanged = field(default_factory=Exchanged, repr=False, compare=False)

    def of(self, op: ir.Operation) -> int:
        """Returns the price of recomputing the operation in bytes, rounded up; NEVER at most."""
        return self.of_work(*self.work(op))

    def of_work(self, cheap: bool, seconds: float) -> int:
        """Returns the price in bytes of an operation by its `work`, which no rate changes."""
        rate = self.rates.cheap if cheap else self.rates.expensive
        # An infinite rate is tested for by itself: the seconds may be 0.
        if math.isinf(rate):
            return NEVER
        return math.ceil(min(seconds * rate, NEVER))

    def seconds(self, op: ir.Operation) -> float:
        """Returns the weighted seconds of recomputing the operation."""
        return self.work(op)[1]

    def work(self, op: ir.Operation) -> tuple[bool, float]:
        """Returns whether an operation is cheap, and its weighted seconds."""
        found = self._known.get(op)
        if found is None:
            cheap = is_cheap(op) and not self.exchanged.repeated_by(op)
            found = cheap, self.repeat_seconds(op) * (CHEAP_SHARE if cheap else 1)
            self._known[op] = found
        return found

    def repeat_seconds(self, op: ir.Operation) -> float:
        """Returns the seconds of recomputing the operation; an upper bound for cheap work."""
        found = self._roofline_seconds.get(op)
        if found is None:
            alone_s = repeat_seconds(op, self.speed, self.sizes)
            exchange_s = self._exchange_seconds(op)
            # A constraint does nothing else.
            found = max(alone_s, exchange_s) if op.name == CONSTRAINT else alone_s + exchange_s
            self._roofline_seconds[op] = found
        return found

    def _exchange_seconds(self, op: ir.Operation) -> float:
        """Returns the seconds of the exchanges that are repeated with the operation."""
        if not self.exchanged.exchanges:
            return 0.0
        found = (self.exchanged.exchanges[each] for each in self.exchanged.repeated_by(op))
        return sum((each.seconds(self.speed) or 0.0) / each.runs for each in found)

    def at(self, rates: Rates) -> Pricing:
        """Returns a pricing with the same seconds and other rates."""
        return dataclasses.replace(self, rates=rates)
