"""Live ranges of the values of a compiled program, for `xla/live_ranges.json`.

XLA writes them as text when it compiles with `xla_dump_to`: the buffer assignment has the place and
size of each value, the live ranges have the times. The module's text has the instruction that
computes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from hloom.xla.hlo import HloModule
from hloom.xla.origins import HloValue, Origin, Origins

MAX_VALUES = 4096
"""The largest that are listed: a program of 20,000 instructions has as many values again."""

ARGUMENT, OUTPUT, CONSTANT, TEMP = "argument", "output", "constant", "temp"
_LOCAL, _HOST = "local", "host"
"""A kernel's own memory, and memory of the host: neither is listed."""

_HOST_COLOR = 5
"""The memory space that XLA gives to the host's memory on a GPU (Layout::kHostMemorySpace)."""


def live_ranges(assignment: str, ranges: str, module: str) -> dict[str, object]:
    """Returns the live ranges as values that `json.dumps` takes.

    Args:
      assignment: XLA's `*buffer-assignment.txt`.
      ranges: XLA's `*live-range.txt`.
      module: the optimised module as text.

    Returns:
      instructions: the number of instructions in the schedule; times are indices into it.
      peak_bytes: the peak of the temporary memory in use.
      peak_at: the time of the peak.
      temp_bytes: the temporary memory that XLA allocates.
      at_peak: indices of the values in use at the peak, largest first.
      values: name, operation, line, type, bytes, start, end (included) and kind of each value; of
        very many values the largest. Line is the user's own; where known also "library", the line
        in an installed package that it calls, and "function", the function that contains the user's
        line. For a loop's stack, operation and line are of the value that the loop stores, and
        "stacked" is the number of stored values; "copy_of" is the type that XLA has widened to the
        value's own.
      values_left_out: the number of values that are not listed.
      curve: pairs of a time and the temporary memory in use from then on.

    Raises ValueError where a text cannot be parsed, or the two are of different modules.
    """
    count = len(re.findall(r"^    \d+:\S+$", ranges, re.MULTILINE))
    found = _RANGE.findall(ranges)
    lives = {(name, index): (int(start), int(end)) for name, index, start, end in found}
    sizes, values = _read_values(assignment, lives)
    if not sizes or (count and not values):
        raise ValueError("the buffer assignment names no allocation of this module's values")
    values = [each for each in values if each.kind not in (_LOCAL, _HOST) and each.bytes]
    curve = _temp_curve(values, count)
    peak_at = int(curve.argmax()) if curve.size else 0
    listed = sorted(values, key=lambda value: (-value.bytes, value.start, value.instruction))
    listed = sorted(listed[:MAX_VALUES], key=lambda value: (value.start, value.instruction))
    origins = Origins(values, HloModule(module))
    return {
        "instructions": count,
        "peak_bytes": int(curve.max(initial=0)),
        "peak_at": peak_at,
        "temp_bytes": sum(size for size, kind in sizes.values() if kind == TEMP),
        "at_peak": _temps_at(listed, peak_at),
        "values": [_to_json(value, origins.of(value)) for value in listed],
        "values_left_out": len(values) - len(listed),
        "curve": _changes(curve),
    }


def _to_json(value: HloValue, origin: Origin) -> dict[str, object]:
    source = origin.made_by.source
    more = {
        "library": source.library,
        "function": source.function,
        "stacked": origin.stacked if origin.stacked > 1 else 0,
        "copy_of": origin.copy_of,
    }
    return {
        "name": value.instruction + value.index,
        "operation": origin.made_by.operation,
        "line": source.line,
        "type": value.type,
        "bytes": value.bytes,
        "start": value.start,
        "end": value.end,
        "kind": value.kind,
        **{name: known for name, known in more.items() if known},
    }


_RANGE = re.compile(r"^    (\S+?)\{([\d,]*)\}:(\d+)-(\d+)$", re.MULTILINE)
_ALLOCATION = re.compile(r"^allocation (?P<number>\d+): size (?P<size>\d+)(?P<rest>.*):$")
_VALUE = re.compile(
    r"^ value: <\d+ (?P<name>[^\s{]+)(?:\{(?P<index>[\d,]*)\})?(?: \(phi\))? @\d+> "
    r"\(size=(?P<size>\d+),offset=(?P<offset>\d+)\)(?:: (?P<type>.*))?$"
)
_COLOR = re.compile(r", color (\d+)")
_LAYOUT = re.compile(r"\{[^}]*\}|/\*.*?\*/")


def _read_values(
    text: str, ranges: dict[tuple[str, str], tuple[int, int]]
) -> tuple[dict[int, tuple[int, str]], list[HloValue]]:
    """Returns the size and kind of each allocation, and the values in them."""
    allocations: dict[int, tuple[int, str]] = {}
    values: list[HloValue] = []
    number = 0
    for line in text.splitlines():
        if found := _ALLOCATION.match(line):
            number = int(found["number"])
            allocations[number] = (int(found["size"]), _kind(found["rest"]))
        elif (found := _VALUE.match(line)) and number in allocations:
            index = found["index"] or ""
            if (found["name"], index) in ranges:
                start, end = ranges[found["name"], index]
                values.append(
                    HloValue(
                        instruction=found["name"],
                        index=f"{{{index}}}" if found["index"] is not None else "",
                        type=_LAYOUT.sub("", found["type"] or ""),
                        allocation=number,
                        kind=allocations[number][1],
                        offset=int(found["offset"]),
                        bytes=int(found["size"]),
                        start=start,
                        end=end,
                    )
                )
    return allocations, values


def _kind(rest: str) -> str:
    """Returns the kind of an allocation, from the text after the size in its line."""
    color = _COLOR.search(rest)
    if color and int(color[1]) == _HOST_COLOR:
        return _HOST
    if "maybe-live-out" in rest:
        return OUTPUT
    if ", parameter " in rest:
        return ARGUMENT
    if ", constant" in rest:
        return CONSTANT
    return _LOCAL if "thread-local" in rest else TEMP


def _temp_curve(values: Iterable[HloValue], count: int) -> np.ndarray:
    """Returns the temporary memory in use at each time, in bytes."""
    curve = np.zeros(count, np.int64)
    by_allocation: dict[int, list[HloValue]] = defaultdict(list)
    for value in values:
        if value.kind == TEMP:
            by_allocation[value.allocation].append(value)
    for there in by_allocation.values():
        curve += _in_use(there, count)
    return curve


def _in_use(values: list[HloValue], count: int) -> np.ndarray:
    """Returns the bytes of one allocation in use at each time; values may share bytes."""
    edges = {edge for v in values for edge in (v.offset, v.offset + v.bytes)}
    borders = np.array(sorted(edges), np.int64)
    lengths = np.diff(borders)
    users = np.zeros(len(lengths), np.int64)
    change = np.zeros(count + 1, np.int64)
    steps = [(value.start, 1, value) for value in values]
    steps += [(value.end + 1, -1, value) for value in values]
    # At equal times starts come before ends: memory that is passed on stays in use.
    for time, step, value in sorted(steps, key=lambda entry: (entry[0], -entry[1])):
        first, last = np.searchsorted(borders, (value.offset, value.offset + value.bytes))
        part = users[first:last]
        turned = part == (0 if step > 0 else 1)
        change[min(time, count)] += step * int(lengths[first:last][turned].sum())
        part += step
    return np.cumsum(change)[:count]


def _temps_at(values: list[HloValue], time: int) -> list[int]:
    """Returns the values that fill the temporary memory at a time, each byte once, largest
    first."""
    there = [
        (number, value)
        for number, value in enumerate(values)
        if value.kind == TEMP and value.start <= time <= value.end
    ]
    # Of two values in the same place, the one that starts at this time counts.
    there.sort(key=lambda entry: (-entry[1].bytes, -entry[1].start, entry[1].instruction))
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    found: list[int] = []
    for number, value in there:
        begin, end = value.offset, value.offset + value.bytes
        others = taken[value.allocation]
        if not any(begin < stop and start < end for start, stop in others):
            others.append((begin, end))
            found.append(number)
    return found


def _changes(curve: np.ndarray) -> list[list[int]]:
    if not curve.size:
        return []
    changed = np.flatnonzero(np.diff(curve, prepend=curve[0] - 1))
    return [[int(time), int(curve[time])] for time in changed]
