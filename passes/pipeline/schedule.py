"""Schedules a pipeline: which device works on which microbatch in which tick, and the idle share.

Device j of the order begins j ticks after the first one. It takes the microbatches one after the
other, and with several repeats all of them again for its next segment. So the item of number u,
microbatch ``u mod M`` of repeat ``u div M``, is on it in tick ``u + j``::

    S = 3, M = 4, one repeat           tick  0 1 2 3 4 5
                                    device 0  0 1 2 3 . .
                                    device 1  . 0 1 2 3 .
                                    device 2  . . 0 1 2 3

There are ``R·M + S - 1`` ticks, of which a device idles in S - 1: the *bubble*.

Source: GPipe (Huang et al. 2019); the circular schedule is that of interleaved stages (Narayanan et
al. 2021) with each device's segments one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineSchedule:
    """A GPipe or circular schedule.

    Attributes:
      stages: the devices.
      microbatches: the parts of the batch.
      repeats: how many segments of layers each device has.
    """

    stages: int
    microbatches: int
    repeats: int

    @property
    def items(self) -> int:
        """Returns the number of a device's items: each microbatch in each repeat."""
        return self.repeats * self.microbatches

    @property
    def ticks(self) -> int:
        return self.items + self.stages - 1

    @property
    def bubble(self) -> float:
        """Returns the share of the ticks in which a device is idle."""
        return (self.stages - 1) / self.ticks

    def item(self, place: int, tick: int) -> tuple[int, int] | None:
        """Returns repeat and microbatch of a device, by its place in the order; None if idle."""
        number = tick - place
        return divmod(number, self.microbatches) if 0 <= number < self.items else None

    def picture(self) -> Iterator[tuple[int, str]]:
        """Yields each device of the order with its ticks: the microbatch, or a dot."""
        width = len(str(self.microbatches - 1))
        for place in range(self.stages):
            cells = (self.item(place, tick) for tick in range(self.ticks))
            texts = ("." if each is None else str(each[1]) for each in cells)
            yield place, " ".join(text.rjust(width) for text in texts)
