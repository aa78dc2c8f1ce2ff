"""Live ranges of the values of a compiled program, for `xla/live_ranges.json`.

XLA writes them as text when it compiles with `xla_dump_to`: its buffer assignment says where each
value lies and how large it is, its live ranges say when. The module's text says what made it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hloom.xla.instructions import HloInstruction, HloInstructions

MAX_VALUES = 4096
"""The largest that are listed: a program of 20,000 instructions has as many values again."""

ARGUMENT, OUTPUT, CONSTANT, TEMP = "argument", "output", "constant", "temp"
_LOCAL, _HOST = "local", "host"
"""A kernel's own memory, and memory of the host: neither is listed."""

_HOST_COLOR = 5
"""The memory space that XLA gives to the host's memory on a GPU (Layout::kHostMemorySpace)."""

_MOST_MAKERS = 64
"""Of the values that hand one piece of memory on to each other, how many are asked for a line."""

_FORWARDING = frozenset({"conditional", "copy", "parameter", "while"})
"""Opcodes of instructions whose results another instruction has made."""


@dataclass(frozen=True)
class HloValue:
    """A value, where it lies and how long.

    Attributes:
      instruction: the name of the instruction that defines it.
      index: where in that instruction's result, as "{0}"; empty for the whole result.
      type: e.g. "f32[8,8]".
      allocation: the number of the allocation that it lies in.
      kind: of the allocation. A donated argument lies in an output's.
      offset, bytes: its place in the allocation.
      start, end: the first and the last instruction of its live range, both included.
    """

    instruction: str
    index: str
    type: str
    allocation: int
    kind: str
    offset: int
    bytes: int
    start: int
    end: int


def live_ranges(assignment: str, ranges: str, module: str) -> dict[str, object]:
    """Live ranges, as values that `json.dumps` takes.

    Args:
      assignment: XLA's `*buffer-assignment.txt`.
      ranges: XLA's `*live-range.txt`.
      module: the optimised module as text.

    Returns:
      instructions: how many the schedule has; times count them.
      peak_bytes: the most temporary memory in use at once.
      peak_at: when.
      temp_bytes: the temporary memory that XLA allocates.
      at_peak: indices of the values in use then, largest first.
      values: name, operation, line, type, bytes, start, end (included) and kind of each value; of
        very many the largest. Line is the user's own; where known also "library", the line in an
        installed package that it calls, and "function", what the user's line stands in.
      values_left_out: how many are not listed.
      curve: pairs of a time and the temporary memory in use from then on.

    Raises ValueError where a text is not what XLA writes, or the two are of different modules.
    """
    count = len(re.findall(r"^    \d+:\S+$", ranges, re.MULTILINE))
    sizes, values = _read_values(assignment, _read_ranges(ranges))
    if not sizes or (count and not values):
        raise ValueError("the buffer assignment names no allocation of this module's values")
    values = [each for each in values if each.kind not in (_LOCAL, _HOST) and each.bytes]
    curve = _temp_curve(values, count)
    peak_at = int(curve.argmax()) if curve.size else 0
    listed = sorted(values, key=lambda value: (-value.bytes, value.start, value.instruction))
    listed = sorted(listed[:MAX_VALUES], key=lambda value: (value.start, value.instruction))
    origins = _Origins(values, HloInstructions(module))
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


def _to_json(value: HloValue, origin: HloInstruction) -> dict[str, object]:
    source = origin.source
    more = {"library": source.library, "function": source.function}
    return {
        "name": value.instruction + value.index,
        "operation": origin.operation,
        "line": source.line,
        "type": value.type,
        "bytes": value.bytes,
        "start": value.start,
        "end": value.end,
        "kind": value.kind,
        **{name: text for name, text in more.items() if text},
    }


_RANGE = re.compile(r"^    (\S+?)\{([\d,]*)\}:(\d+)-(\d+)$", re.MULTILINE)
_ALLOCATION = re.compile(r"^allocation (?P<number>\d+): size (?P<size>\d+)(?P<rest>.*):$")
_VALUE = re.compile(
    r"^ value: <\d+ (?P<name>[^\s{]+)(?:\{(?P<index>[\d,]*)\})?(?: \(phi\))? @\d+> "
    r"\(size=(?P<size>\d+),offset=(?P<offset>\d+)\)(?:: (?P<type>.*))?$"
)
_COLOR = re.compile(r", color (\d+)")
_LAYOUT = re.compile(r"\{[^}]*\}|/\*.*?\*/")


def _read_ranges(text: str) -> dict[tuple[str, str], tuple[int, int]]:
    rows = _RANGE.findall(text)
    return {(name, index): (int(start), int(end)) for name, index, start, end in rows}


def _read_values(
    text: str, ranges: dict[tuple[str, str], tuple[int, int]]
) -> tuple[dict[int, tuple[int, str]], list[HloValue]]:
    """Size and kind of each allocation, and the values in them."""
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
    """The kind of an allocation, of what its line says behind the size."""
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


class _Origins:
    """Finds the instruction that says most of where a value comes from.

    XLA's own instructions, and some that it has fused, have no source line: then one that writes to
    the same memory may, one inside the fusion, or one that makes an operand.
    """

    def __init__(self, values: Iterable[HloValue], instructions: HloInstructions) -> None:
        self._instructions = instructions
        self._runs: dict[HloValue, list[HloValue]] = {}
        """By value, those that hand one piece of memory on to each other, the last one first."""
        last: dict[tuple[int, int], HloValue] = {}
        for value in sorted(values, key=lambda value: (value.start, value.end)):
            place = value.allocation, value.offset
            before = last.get(place)
            # Memory that is handed on is in use without a gap.
            follows = before is not None and value.start <= before.end
            run = self._runs[before] if before is not None and follows else []
            run.insert(0, value)
            self._runs[value] = run
            last[place] = value

    def of(self, value: HloValue) -> HloInstruction:
        """The instruction with the operation and the line of a value."""
        own = self._instructions.get(value.instruction)
        is_argument = own.opcode == "parameter" and not value.start
        if is_argument or (own.source.line and own.opcode not in _FORWARDING):
            return own
        found = next((each for each in self._candidates(value, own) if each.source.line), own)
        return found if found.operation or not own.operation else own

    def _candidates(self, value: HloValue, own: HloInstruction) -> Iterator[HloInstruction]:
        makers = [] if own.opcode in _FORWARDING else [own]
        for other in self._runs[value][:_MOST_MAKERS]:
            maker = self._instructions.get(other.instruction)
            makers += [] if maker.opcode in _FORWARDING else [maker]
        yield from makers
        for maker in makers:
            yield from self._instructions.of_computation(maker.calls)
        yield from map(self._instructions.get, own.operands)
        yield own


def _temp_curve(values: Iterable[HloValue], count: int) -> np.ndarray:
    """By time, the bytes of temporary memory that some value lies in."""
    curve = np.zeros(count, np.int64)
    by_allocation: dict[int, list[HloValue]] = defaultdict(list)
    for value in values:
        if value.kind == TEMP:
            by_allocation[value.allocation].append(value)
    for there in by_allocation.values():
        curve += _in_use(there, count)
    return curve


def _in_use(values: list[HloValue], count: int) -> np.ndarray:
    """By time, the bytes of one allocation in use; several values may lie in the same ones."""
    edges = {edge for v in values for edge in (v.offset, v.offset + v.bytes)}
    borders = np.array(sorted(edges), np.int64)
    lengths = np.diff(borders)
    users = np.zeros(len(lengths), np.int64)
    change = np.zeros(count + 1, np.int64)
    steps = [(value.start, 1, value) for value in values]
    steps += [(value.end + 1, -1, value) for value in values]
    # At one time first what begins: memory that is handed over stays in use.
    for time, step, value in sorted(steps, key=lambda entry: (entry[0], -entry[1])):
        first, last = np.searchsorted(borders, (value.offset, value.offset + value.bytes))
        part = users[first:last]
        turned = part == (0 if step > 0 else 1)
        change[min(time, count)] += step * int(lengths[first:last][turned].sum())
        part += step
    return np.cumsum(change)[:count]


def _temps_at(values: list[HloValue], time: int) -> list[int]:
    """Which values the temporary memory at a time consists of, each byte once, largest first."""
    there = [
        (number, value)
        for number, value in enumerate(values)
        if value.kind == TEMP and value.start <= time <= value.end
    ]
    # Of two in the same place, the one that has just begun.
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
