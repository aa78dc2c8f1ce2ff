"""What doing an operation once more is worth in bytes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.analysis.cost import Speed, repeat_seconds
from hloom.passes.analysis.purity import is_cheap
from hloom.passes.ir.types import TensorSizes

NEVER = 2**60
"""Bytes that are more than any device has: the price of what is never to be done."""


_CHEAP_SHARE = 1 / 16
"""How much a second of cheap work counts, beside one of expensive work."""


@dataclass(frozen=True)
class Rates:
    """What a second of recomputation is worth: bytes a second, by what is recomputed."""

    expensive: float
    cheap: float


@dataclass(frozen=True)
class Pricing:
    """Prices of recomputation: seconds on one device, at so many bytes each.

    Of the seconds of cheap work only a share counts. It is mostly done inside of kernels that run
    anyway, whose roofline is an upper bound, and a matrix product shall not be repeated to save a
    few passes over memory: what is added is told and compared in FLOPs.

    The seconds of each operation are looked up once, and stay so for prices made by ``at``.
    """

    speed: Speed
    rates: Rates = Rates(1.0, 1.0)
    _known: dict[ir.Operation, tuple[bool, float]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _roofline_seconds: dict[ir.Operation, float] = field(
        default_factory=dict, repr=False, compare=False
    )
    _sizes: TensorSizes = field(default_factory=TensorSizes, repr=False, compare=False)

    def of(self, op: ir.Operation) -> int:
        """Bytes that doing the operation once more is worth, rounded up; NEVER at most."""
        cheap, seconds = self._look_up(op)
        rate = self.rates.cheap if cheap else self.rates.expensive
        # Not by way of the seconds, which may be 0.
        if math.isinf(rate):
            return NEVER
        return math.ceil(min(seconds * rate, NEVER))

    def seconds(self, op: ir.Operation) -> float:
        """Seconds that doing the operation once more takes, as they count."""
        return self._look_up(op)[1]

    def _look_up(self, op: ir.Operation) -> tuple[bool, float]:
        """Whether an operation is cheap, and its seconds as they count."""
        found = self._known.get(op)
        if found is None:
            cheap = is_cheap(op)
            found = cheap, self.repeat_seconds(op) * (_CHEAP_SHARE if cheap else 1)
            self._known[op] = found
        return found

    def repeat_seconds(self, op: ir.Operation) -> float:
        """Seconds that doing the operation once more takes, of cheap work an upper bound."""
        found = self._roofline_seconds.get(op)
        if found is None:
            found = self._roofline_seconds[op] = repeat_seconds(op, self.speed, self._sizes)
        return found

    def at(self, rates: Rates) -> Pricing:
        """The same seconds at other prices."""
        return dataclasses.replace(self, rates=rates)
