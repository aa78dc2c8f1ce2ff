"""The collectives of a compiled program by XLA's text: their number, bytes and loops.

Bytes are those of one device.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from hloom.passes.ir.collectives import sent_bytes
from hloom.xla.collectives import exchange_of, kind_of
from hloom.xla.hlo import HloModule


@dataclasses.dataclass(frozen=True)
class Collectives:
    """The collectives that one run of a program executes.

    Attributes:
      outside: collectives that are in no loop.
      inside: collectives in loops, each counted as often as it runs.
      outside_bytes, inside_bytes: the bytes of their results.
    """

    outside: int = 0
    inside: int = 0
    outside_bytes: int = 0
    inside_bytes: int = 0


def collectives(text: str) -> Collectives:
    """Counts the collectives of a module in XLA's text."""
    counts = [0, 0]
    bytes_ = [0, 0]
    for each in collectives_of(text):
        counts[each.in_loop] += each.runs
        bytes_[each.in_loop] += each.runs * each.result_bytes
    return Collectives(counts[0], counts[1], bytes_[0], bytes_[1])


def collectives_by_kind(text: str) -> dict[str, int]:
    """Counts the collectives of one run of a module, by XLA's name of the kind."""
    counts: Counter[str] = Counter()
    for each in collectives_of(text):
        counts[each.kind] += each.runs
    return dict(sorted(counts.items()))


def sent_bytes_by_kind(text: str) -> dict[str, int]:
    """Returns the bytes that each device sends in one run of a module, by XLA's name of the
    kind."""
    sent: Counter[str] = Counter()
    for each in collectives_of(text):
        sent[each.kind] += each.runs * sent_bytes(each.kind, each.result_bytes, each.devices)
    return dict(sorted(sent.items()))


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective, its number of runs, and the size of its replica group."""

    kind: str
    result_bytes: int
    runs: int
    in_loop: bool
    devices: int


def collectives_of(text: str) -> Iterator[Collective]:
    """Yields each collective of a module in XLA's text: once for its runs outside of loops, and
    once for those inside."""
    module = HloModule(text)
    for name, runs in module.runs(in_kernels=True).items():
        for one in module.of_computation(name):
            if kind_of(one):
                kind, size_bytes, devices = exchange_of(one, module)
                for times, in_loop in ((runs.outside, False), (runs.inside, True)):
                    if times:
                        yield Collective(kind, size_bytes, times, in_loop, devices)
