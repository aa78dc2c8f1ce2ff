"""What is in memory when, in the program that XLA compiled: for `xla/live_ranges.json`.

The module tells the order of the instructions and who reads what; the buffer assignment tells how
large each value is and where it lies. Without a buffer assignment (XLA gives none for a GPU that
is not there, nor for executables that a cache served) sizes are those of the types, and who shares
whose memory follows from the rules alone: the figures are then near, not exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hloom.xla import buffer_assignment as assignments
from hloom.xla.alias_analysis import SharedMemory
from hloom.xla.buffer_assignment import BufferAssignment, Place
from hloom.xla.dataflow import Dataflow, Position, Range
from hloom.xla.hlo_module import Instruction, Module

MAX_VALUES = 4096
"""The largest that are listed: a program of 20,000 instructions has as many values again."""

FROM_PROTO = "buffer assignment"
FROM_TEXT = "buffer assignment text"
FROM_SCHEDULE = "schedule alone"

_LISTED = (assignments.ARGUMENT, assignments.OUTPUT, assignments.CONSTANT, assignments.TEMP)
_TELLS_LITTLE = frozenset({"conditional", "copy", "parameter", "while"})
"""Instructions that hold what another one has made."""
_LOOP_FUSION = "kLoop"
"""A fusion that makes each element of its result of the same elements of its operands, mostly."""


def live_ranges(
    module_proto: bytes, buffer_assignment: bytes = b"", *, buffer_assignment_text: str = ""
) -> dict[str, object]:
    """What is in memory when, as values that `json.dumps` takes.

    Args:
      module_proto: the optimised module, a serialized HloModuleProto.
      buffer_assignment: a serialized BufferAssignmentProto; empty where there is none.
      buffer_assignment_text: what XLA wrote in `*buffer-assignment.txt`; empty where it did not.

    Returns:
      source: where sizes and places come from.
      instructions: how many there are; times count them.
      peak_bytes: the most temporary memory in use at once.
      peak_at: when.
      temp_bytes: what XLA sets aside for it; None where it is not known.
      at_peak: which of the values are the ones in use then, largest first.
      values: name, operation, line, type, bytes, start, end (included) and kind of each value; of
        very many the largest.
      values_left_out: how many those are not.
      curve: pairs of a time and the temporary memory in use from then on.

    Raises ValueError where the bytes are not what they should be.
    """
    known, source = None, FROM_SCHEDULE
    if buffer_assignment:
        known, source = assignments.read_proto(buffer_assignment), FROM_PROTO
    elif buffer_assignment_text:
        known, source = assignments.read_text(buffer_assignment_text), FROM_TEXT
    try:
        return {"source": source, **_found(Module(module_proto), known)}
    except (IndexError, KeyError) as error:
        # What one instruction says of another does not fit.
        raise ValueError(f"the module is not as XLA writes them: {error!r}") from error


def _found(module: Module, known: BufferAssignment | None) -> dict[str, object]:
    flow = Dataflow(module, None if known is None else known.has)
    shared = SharedMemory(flow)
    shared.hand_over()
    places = _places_by_type(flow, shared) if known is None else _known_places(flow, known)
    values = _values(flow, shared, places)
    curve = _temp_curve(values, len(flow.order))
    peak_at = int(curve.argmax()) if curve.size else 0
    listed = sorted(values, key=lambda value: (-value.place.bytes, value.range.start, value.name))
    listed = sorted(listed[:MAX_VALUES], key=lambda value: (value.range.start, value.name))
    return {
        "instructions": len(flow.order),
        "peak_bytes": int(curve.max(initial=0)),
        "peak_at": peak_at,
        "temp_bytes": None if known is None else known.temp_bytes,
        "at_peak": _at(listed, peak_at),
        "values": [value.to_json() for value in listed],
        "values_left_out": len(values) - len(listed),
        "curve": _changes(curve),
    }


@dataclass(frozen=True)
class _Value:
    """A value as it is listed."""

    name: str
    operation: str
    line: str
    type: str
    range: Range
    place: Place

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "operation": self.operation,
            "line": self.line,
            "type": self.type,
            "bytes": self.place.bytes,
            "start": self.range.start,
            "end": self.range.end,
            "kind": self.place.kind,
        }


def _known_places(flow: Dataflow, known: BufferAssignment) -> dict[Position, Place]:
    found = {value: known.place(flow.instruction(value), value[1]) for value in flow.ranges}
    places = {value: place for value, place in found.items() if place is not None}
    if flow.order and not places:
        raise ValueError(
            "the buffer assignment is of another module: it knows no value of this one"
        )
    return places


def _places_by_type(flow: Dataflow, shared: SharedMemory) -> dict[Position, Place]:
    """A place of its own for each group of values that share memory."""
    _share_at_last_reads(flow, shared)
    places: dict[Position, Place] = {}
    for number, group in enumerate(shared.groups()):
        sizes = [flow.instruction(value).shape.at(value[1]).bytes for value in group]
        kind = _kind_of(flow, group)
        for value, size in zip(group, sizes, strict=True):
            given = flow.instruction(value).opcode == "parameter" and kind == assignments.OUTPUT
            places[value] = Place(number, assignments.ARGUMENT if given else kind, 0, size)
    return places


def _kind_of(flow: Dataflow, group: list[Position]) -> str:
    if any(value in flow.returned for value in group):
        return assignments.OUTPUT
    if any(value[0] in flow.given for value in group):
        return assignments.ARGUMENT
    if all(flow.instruction(value).opcode == "constant" for value in group):
        return assignments.CONSTANT
    return assignments.TEMP


def _share_at_last_reads(flow: Dataflow, shared: SharedMemory) -> None:
    """Lets a result stand where an operand of its size did that nobody reads later, as XLA does."""
    for value in list(flow.ranges):
        instruction = flow.instruction(value)
        if value[1] or instruction.fusion != _LOOP_FUSION:
            continue
        size, begin = instruction.shape.bytes, flow.ranges[value].start
        read = (one for operand in instruction.operands for one in flow.values_at((operand, ())))
        given_up = (
            one
            for one in read
            if flow.ranges[one].end == begin
            and flow.instruction(one).shape.at(one[1]).bytes == size
            and flow.instruction(one).opcode not in ("parameter", "constant")
        )
        taken = next(given_up, None)
        if taken is not None:
            shared.join(taken, value)


def _values(flow: Dataflow, shared: SharedMemory, places: dict[Position, Place]) -> list[_Value]:
    values: list[_Value] = []
    for group in shared.groups():
        makers = _makers(flow, group)
        for value in group:
            place, instruction = places.get(value), flow.instruction(value)
            if place is None or place.kind not in _LISTED or not place.bytes:
                continue
            told = instruction
            if value[0] not in flow.given:
                told = _teller(flow, instruction, makers)
            index = f"{{{','.join(map(str, value[1]))}}}" if instruction.shape.parts else ""
            values.append(
                _Value(
                    name=instruction.name + index,
                    operation=told.operation or instruction.operation,
                    line=told.line or instruction.line,
                    type=str(instruction.shape.at(value[1])),
                    range=flow.ranges[value],
                    place=place,
                )
            )
    return values


def _makers(flow: Dataflow, group: list[Position]) -> list[Instruction]:
    """The instructions that compute what is in a group's memory, the last one first."""
    made_by = [flow.instruction(value) for value in reversed(group)]
    return [one for one in made_by if one.opcode not in _TELLS_LITTLE]


def _teller(flow: Dataflow, made_by: Instruction, makers: list[Instruction]) -> Instruction:
    """The instruction that tells most of where a value comes from.

    XLA's own instructions, and some that it has fused, say nothing of themselves: then one that
    writes to the same memory does, one inside, or one that makes what is read.
    """
    own = [] if made_by.opcode in _TELLS_LITTLE else [made_by]
    for one in (*own, *makers):
        if one.line:
            return one
    for one in (*own, *makers):
        if one.opcode == "fusion":
            inside = flow.module.computations[one.called[0]].instructions.values()
            found = next((inner for inner in reversed(inside) if inner.line), None)
            if found is not None:
                return found
    read = (flow.instruction(v) for o in made_by.operands for v in flow.values_at((o, ())))
    return next((one for one in read if one.line), made_by)


def _temp_curve(values: Iterable[_Value], count: int) -> np.ndarray:
    """By time, the bytes of temporary memory that some value lies in."""
    curve = np.zeros(count, np.int64)
    by_allocation: dict[int, list[_Value]] = defaultdict(list)
    for value in values:
        if value.place.kind == assignments.TEMP:
            by_allocation[value.place.allocation].append(value)
    for there in by_allocation.values():
        curve += _in_use(there, count)
    return curve


def _in_use(values: list[_Value], count: int) -> np.ndarray:
    """By time, the bytes of one allocation in use; several values may lie in the same ones."""
    edges = {edge for v in values for edge in (v.place.offset, v.place.offset + v.place.bytes)}
    borders = np.array(sorted(edges), np.int64)
    lengths = np.diff(borders)
    users = np.zeros(len(lengths), np.int64)
    change = np.zeros(count + 1, np.int64)
    steps = [(value.range.start, 1, value) for value in values]
    steps += [(value.range.end + 1, -1, value) for value in values]
    # At one time first what begins: memory that is handed over stays in use.
    for time, step, value in sorted(steps, key=lambda entry: (entry[0], -entry[1])):
        place = value.place
        first, last = np.searchsorted(borders, (place.offset, place.offset + place.bytes))
        part = users[first:last]
        turned = part == (0 if step > 0 else 1)
        change[min(time, count)] += step * int(lengths[first:last][turned].sum())
        part += step
    return np.cumsum(change)[:count]


def _at(values: list[_Value], time: int) -> list[int]:
    """Which values the temporary memory at a time consists of, each byte once, largest first."""
    there = [
        (number, value)
        for number, value in enumerate(values)
        if value.place.kind == assignments.TEMP and value.range.start <= time <= value.range.end
    ]
    # Of two in the same place, the one that has just come.
    there.sort(key=lambda entry: (-entry[1].place.bytes, -entry[1].range.start, entry[1].name))
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    found: list[int] = []
    for number, value in there:
        begin, end = value.place.offset, value.place.offset + value.place.bytes
        others = taken[value.place.allocation]
        if not any(begin < stop and start < end for start, stop in others):
            others.append((begin, end))
            found.append(number)
    return found


def _changes(curve: np.ndarray) -> list[list[int]]:
    if not curve.size:
        return []
    changed = np.flatnonzero(np.diff(curve, prepend=curve[0] - 1))
    return [[int(time), int(curve[time])] for time in changed]
