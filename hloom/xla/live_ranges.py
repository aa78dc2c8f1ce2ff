"""Live ranges of the values of a compiled program, for `xla/live_ranges.json`.

XLA writes them as text when it compiles with `xla_dump_to`: the buffer assignment has the place and
size of each value, the live ranges have the times. The module's text has the instruction that
computes it.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from hloom.passes.framework.structure import Condition, Whole, written
from hloom.passes.framework.tables import Described
from hloom.passes.ir.names import SourceLine
from hloom.xla.hlo import HloModule
from hloom.xla.origins import HloOrigin, HloValue, Origins

MAX_VALUES = 4096
"""The most values that are listed, the largest: a program of 20,000 instructions has as many."""

ARGUMENT, OUTPUT, CONSTANT, TEMP = "argument", "output", "constant", "temp"
_LOCAL, _HOST = "local", "host"
"""A kernel's own memory, and memory of the host: neither is listed."""

_HOST_COLOR = 5
"""The memory space that XLA gives to the host's memory on a GPU (Layout::kHostMemorySpace)."""


@dataclass(frozen=True)
class XlaLiveValue:
    """A value in XLA's schedule.

    Attributes:
      name: of the instruction that makes it, and where in its result the value is.
      operation: JAX's name of it; of what a loop stacks that of the value that it stores.
      line: "file:line" of the user's own program.
      type: in XLA, e.g. "f32[8,8]".
      bytes: on one device.
      start, end: the first and the last instruction while it lives.
      kind: the memory that it is in: an argument, an output, a constant, or a temporary.
      library: the line in an installed package that `line` calls; empty where not known.
      function: what `line` stands in; empty where not known.
      stacked: how many a loop stacks in it; 1 where none does.
      copy_of: the type that XLA has widened to the value's own; empty where it has not.
    """

    name: str
    operation: str
    line: str
    type: str
    bytes: Whole
    start: Whole
    end: Whole
    kind: str
    library: str = ""
    function: str = ""
    stacked: Whole = 1
    copy_of: str = ""

    @classmethod
    def of(cls, value: HloValue, origin: HloOrigin) -> XlaLiveValue:
        """Returns the entry of a value of XLA's texts, with the operation that makes it."""
        source = origin.made_by.source
        return cls(
            name=value.instruction + value.index,
            operation=origin.made_by.operation,
            line=source.line,
            type=value.type,
            bytes=value.bytes,
            start=value.start,
            end=value.end,
            kind=value.kind,
            library=source.library,
            function=source.function,
            stacked=origin.stacked,
            copy_of=origin.copy_of,
        )

    @property
    def is_temporary(self) -> bool:
        """Whether it is in temporary memory."""
        return self.kind == TEMP

    @property
    def described(self) -> Described:
        """The value for people, by what makes it."""
        source = SourceLine(self.line, self.library, self.function)
        name = self.operation or self.name
        return Described(name, source, self.type, self.bytes, stacked=self.stacked)


_LISTED = Condition(f"a list of at most {MAX_VALUES}", lambda values: len(values) <= MAX_VALUES)


@dataclass(frozen=True)
class LiveRanges:
    """The live ranges of values in the schedule that XLA chose.

    Attributes:
      instructions: how many the schedule has; times count them.
      peak_bytes: the most temporary memory in use at once.
      peak_at: when.
      temp_bytes: the temporary memory that XLA allocates.
      at_peak: indices of the values in use then, largest first.
      values: those that are listed: of very many the largest.
      values_left_out: how many are not.
      curve: pairs of a time and the temporary memory in use from then on, in order.
    """

    instructions: Whole
    peak_bytes: Whole
    peak_at: Whole
    temp_bytes: Whole
    at_peak: tuple[Whole, ...]
    values: Annotated[tuple[XlaLiveValue, ...], _LISTED]
    values_left_out: Whole
    curve: tuple[tuple[Whole, Whole], ...]

    def __post_init__(self) -> None:
        times = [-1, *(time for time, _ in self.curve)]
        if max(times) > self.instructions or any(map(operator.ge, times, times[1:])):
            raise ValueError("its curve does not go on from one instruction to a later one")


def live_ranges(assignment: str, ranges: str, module: str) -> dict[str, Any]:
    """Live ranges, as `structure` writes `LiveRanges`.

    Args:
      assignment: XLA's `*buffer-assignment.txt`.
      ranges: XLA's `*live-range.txt`.
      module: the optimised module as text.

    Raises ValueError where a text is not what XLA writes, or the two are of different modules.
    """
    count = len(re.findall(r"^    \d+:\S+$", ranges, re.MULTILINE))
    lives = {
        (name, index): (int(start), int(end)) for name, index, start, end in _RANGE.findall(ranges)
    }
    sizes, values = _read_values(assignment, lives)
    if not sizes or (count and not values):
        raise ValueError("the buffer assignment names no allocation of this module's values")
    values = [each for each in values if each.kind not in (_LOCAL, _HOST) and each.bytes]
    curve = _temp_curve(values, count)
    peak_at = int(curve.argmax()) if curve.size else 0
    listed = sorted(values, key=lambda value: (-value.bytes, value.start, value.instruction))
    listed = sorted(listed[:MAX_VALUES], key=lambda value: (value.start, value.instruction))
    origins = Origins(values, HloModule(module))
    found = LiveRanges(
        instructions=count,
        peak_bytes=int(curve.max(initial=0)),
        peak_at=peak_at,
        temp_bytes=sum(size for size, kind in sizes.values() if kind == TEMP),
        at_peak=tuple(_temps_at(listed, peak_at)),
        values=tuple(XlaLiveValue.of(value, origins.of(value)) for value in listed),
        values_left_out=len(values) - len(listed),
        curve=tuple(_changes(curve)),
    )
    return written(found)


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
    """Returns the values that fill temporary memory at a time, each byte once, largest first."""
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


def _changes(curve: np.ndarray) -> list[tuple[int, int]]:
    if not curve.size:
        return []
    changed = np.flatnonzero(np.diff(curve, prepend=curve[0] - 1))
    return [(int(time), int(curve[time])) for time in changed]
