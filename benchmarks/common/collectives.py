"""The collectives of a compiled program by XLA's text: how many, of how much, in which loops."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator

from benchmarks.common.hlo_text import Computations, array_bytes, computations, entry_name, trips

_COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)
_CALLED = re.compile(r"(?:body|calls|to_apply)=%?([\w.-]+)")


@dataclasses.dataclass(frozen=True)
class Collectives:
    """What one run of a program does.

    Attributes:
      outside: collectives that are in no loop.
      inside: those in loops, as often as they run.
      outside_bytes, inside_bytes: of what they give, on one device.
    """

    outside: int = 0
    inside: int = 0
    outside_bytes: int = 0
    inside_bytes: int = 0


def collectives(text: str) -> Collectives:
    """The collectives of a module in XLA's text."""
    counts = [0, 0]
    bytes_ = [0, 0]
    for each in _found(text):
        counts[each.in_loop] += each.runs
        bytes_[each.in_loop] += each.runs * each.result_bytes
    return Collectives(counts[0], counts[1], bytes_[0], bytes_[1])


def collectives_by_kind(text: str) -> dict[str, int]:
    """By XLA's name of a kind, how often one run of a module does such a collective."""
    counts: Counter[str] = Counter()
    for each in _found(text):
        counts[each.kind] += each.runs
    return dict(sorted(counts.items()))


@dataclasses.dataclass(frozen=True)
class _Found:
    """A collective, and how often it runs."""

    kind: str
    result_bytes: int
    runs: int
    in_loop: bool


def _found(text: str) -> Iterator[_Found]:
    return _walk(computations(text), entry_name(text), 1, in_loop=False)


def _walk(within: Computations, name: str, runs: int, *, in_loop: bool) -> Iterator[_Found]:
    for line in within.get(name, ()):
        found = _COLLECTIVE.search(line)
        if found is not None:
            # XLA:TPU writes a fusion of an all-reduce and a slice.
            kind = "reduce-scatter" if name.startswith("all-reduce-scatter") else found[2]
            yield _Found(kind, _bytes(found[1], started=bool(found[3])), runs, in_loop)
            continue
        is_loop = " while(" in line
        times = runs * trips(within, line)
        for called in _CALLED.findall(line):
            yield from _walk(within, called, times, in_loop=in_loop or is_loop)


def _bytes(type_: str, *, started: bool) -> int:
    """Of a result. What has only started gives a tuple of its operands and its results."""
    sizes = array_bytes(type_)
    return sum(sizes) // 2 if started and len(sizes) > 1 else sum(sizes)
