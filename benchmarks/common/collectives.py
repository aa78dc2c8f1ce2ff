"""The collectives of a compiled program by XLA's text: how many, of how much, in which loops."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator

_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)
_ARRAY = re.compile(r"\b(?:[a-z]+(\d+)\w*|pred)\[([\d,]*)\]")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%?([\w.-]+)")
_BOUND = re.compile(r" = s32\[\]\S* constant\((\d+)\)")
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
    [entry] = re.findall(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE)
    return _walk(dict(_computations(text)), entry, 1, in_loop=False)


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    lines: list[str] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            lines = []
            yield head[1], lines
        else:
            lines.append(line)


def _walk(
    computations: dict[str, list[str]], name: str, runs: int, *, in_loop: bool
) -> Iterator[_Found]:
    for line in computations.get(name, ()):
        found = _COLLECTIVE.search(line)
        if found is not None:
            # XLA:TPU writes a fusion of an all-reduce and a slice.
            kind = "reduce-scatter" if name.startswith("all-reduce-scatter") else found[2]
            yield _Found(kind, _bytes(found[1], started=bool(found[3])), runs, in_loop)
            continue
        is_loop = " while(" in line
        times = runs * (_trips(computations, line) if is_loop else 1)
        for called in _CALLED.findall(line):
            yield from _walk(computations, called, times, in_loop=in_loop or is_loop)


def _trips(computations: dict[str, list[str]], line: str) -> int:
    """The trips of a loop: known, or else what its condition compares with; 1 where neither is."""
    known = _TRIPS.search(line)
    if known is not None:
        return int(known[1])
    condition = _CONDITION.search(line)
    lines = computations.get(condition[1], ()) if condition else ()
    bounds = [int(found[1]) for each in lines if (found := _BOUND.search(each))]
    return bounds[0] if len(bounds) == 1 else 1


def _bytes(type_: str, *, started: bool) -> int:
    """Of a result. What has only started gives a tuple of its operands and its results."""
    sizes = [
        math.prod(map(int, filter(None, shape.split(",")))) * int(bits or 8) // 8
        for bits, shape in _ARRAY.findall(type_)
    ]
    return sum(sizes) // 2 if started and len(sizes) > 1 else sum(sizes)
