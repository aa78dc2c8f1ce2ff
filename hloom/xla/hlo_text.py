"""XLA's text of a module: computations, how often they run, and the bytes of results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_ENTRY = re.compile(r"^ENTRY %?([\w.-]+)", re.MULTILINE)
_ARRAY = re.compile(r"\b(?:[a-z]+(\d+)\w*|pred)\[([\d,]*)\]")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%?([\w.-]+)")
_BOUND = re.compile(r" = s32\[\]\S* constant\((\d+)\)")

Computations = dict[str, list[str]]
"""The lines of each computation, by its name."""


def computations(text: str) -> Computations:
    """The computations of a module."""
    return dict(_computations(text))


def entry_name(text: str) -> str:
    """The name of the computation that a run begins with."""
    [entry] = _ENTRY.findall(text)
    return str(entry)


def trips(found: Computations, line: str) -> int:
    """How often the body of a loop runs: known, or else what its condition compares with; 1 where
    neither is, and for a line that is no loop."""
    if " while(" not in line:
        return 1
    known = _TRIPS.search(line)
    if known is not None:
        return int(known[1])
    condition = _CONDITION.search(line)
    lines = found.get(condition[1], ()) if condition else ()
    bounds = [int(bound[1]) for each in lines if (bound := _BOUND.search(each))]
    return bounds[0] if len(bounds) == 1 else 1


def array_bytes(type_: str) -> list[int]:
    """The bytes of each array in the text of a type."""
    return [
        math.prod(map(int, filter(None, shape.split(",")))) * int(bits or 8) // 8
        for bits, shape in _ARRAY.findall(type_)
    ]


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    lines: list[str] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            lines = []
            yield head[1], lines
        else:
            lines.append(line)
