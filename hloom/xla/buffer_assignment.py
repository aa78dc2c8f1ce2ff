"""Where XLA put each value of a compiled program: its buffer assignment, from bytes or from text.

The bytes are a BufferAssignmentProto, which an executable tells of itself; the text is the
`*buffer-assignment.txt` that XLA writes where it is told to. Both say the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hloom.xla.hlo_module import Index, Instruction
from hloom.xla.protobuf import Message

ARGUMENT, OUTPUT, CONSTANT, TEMP = "argument", "output", "constant", "temp"
LOCAL, HOST = "local", "host"
"""Kinds of memory. LOCAL is a kernel's own; HOST lies beside the host's."""

_HOST_COLOR = 5
"""The memory space that XLA gives to the host's memory on a GPU (Layout::kHostMemorySpace)."""


@dataclass(frozen=True)
class Place:
    """Where a value lies.

    Attributes:
      allocation: its number.
      kind: of memory, one of the constants above. What is written over a donated argument, or
        waits in an output's memory, is OUTPUT.
      offset: bytes from the allocation's begin.
      bytes: what the value takes.
    """

    allocation: int
    kind: str
    offset: int
    bytes: int


@dataclass
class BufferAssignment:
    """A buffer assignment.

    Attributes:
      sizes: bytes of each allocation, by number.
      kinds: of each allocation.
      places: of each value, by the instruction's id, or its name where it came from text, and the
        place in the instruction's result.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    places: dict[tuple[int | str, Index], Place] = field(default_factory=dict)

    def place(self, instruction: Instruction, index: Index) -> Place | None:
        """Where a result, or what is at that place in it, lies if it has memory of its own."""
        found = self.places.get((instruction.id, index))
        return found or self.places.get((instruction.name, index))

    def has(self, instruction: Instruction, index: Index) -> bool:
        """Whether what is at that place in a result has memory of its own."""
        return self.place(instruction, index) is not None

    @property
    def temp_bytes(self) -> int:
        """What XLA's memory analysis calls temporary memory."""
        return sum(size for number, size in self.sizes.items() if self.kinds[number] == TEMP)


def read_proto(data: bytes) -> BufferAssignment:
    """Reads a serialized BufferAssignmentProto. Raises ValueError where it is none."""
    message = Message(data)
    names: dict[int, tuple[int | str, Index]] = {}
    for buffer in message.messages(1):
        location = buffer.message(3)
        # Older ones name the instruction, newer ones number it.
        instruction = location.integer(4) if location.has(4) else location.text(2)
        names[buffer.integer(1)] = (instruction, tuple(location.integers(3)))
    assignment = BufferAssignment()
    for allocation in message.messages(3):
        number = allocation.integer(1)
        kind = _kind(
            is_argument=bool(allocation.integer(5)),
            is_output=bool(allocation.integer(7)),
            is_constant=bool(allocation.integer(12)),
            is_local=bool(allocation.integer(3)),
            color=allocation.integer(8),
        )
        assignment.sizes[number] = allocation.integer(2)
        assignment.kinds[number] = kind
        for assigned in allocation.messages(9):
            name = names.get(assigned.integer(1))
            if name is not None:
                place = Place(number, kind, assigned.integer(2), assigned.integer(3))
                assignment.places[name] = place
    return assignment


_ALLOCATION = re.compile(r"^allocation (?P<number>\d+): size (?P<size>\d+)(?P<rest>.*):$")
_COLOR = re.compile(r", color (\d+)")
_VALUE = re.compile(
    r"^ value: <\d+ (?P<name>[^\s{]+)(?:\{(?P<index>[\d,]*)\})?(?: \(phi\))? @\d+> "
    r"\(size=(?P<size>\d+),offset=(?P<offset>\d+)\)"
)


def read_text(text: str) -> BufferAssignment:
    """Reads XLA's text of a buffer assignment. Raises ValueError where it is none."""
    assignment = BufferAssignment()
    number: int | None = None
    for line in text.splitlines():
        allocation, value = _ALLOCATION.match(line), _VALUE.match(line)
        if allocation:
            number, rest = int(allocation["number"]), allocation["rest"]
            color = _COLOR.search(rest)
            assignment.sizes[number] = int(allocation["size"])
            assignment.kinds[number] = _kind(
                is_argument=", parameter " in rest,
                is_output="maybe-live-out" in rest,
                is_constant=", constant" in rest,
                is_local="thread-local" in rest,
                color=int(color[1]) if color else 0,
            )
        elif value and number is not None:
            index = tuple(int(part) for part in (value["index"] or "").split(",") if part)
            assignment.places[value["name"], index] = Place(
                number, assignment.kinds[number], int(value["offset"]), int(value["size"])
            )
    if not assignment.sizes:
        raise ValueError("no buffer assignment of XLA: it names no allocation")
    return assignment


def _kind(
    *, is_argument: bool, is_output: bool, is_constant: bool, is_local: bool, color: int
) -> str:
    if color == _HOST_COLOR:
        return HOST
    if is_output:
        return OUTPUT
    if is_argument:
        return ARGUMENT
    if is_constant:
        return CONSTANT
    return LOCAL if is_local else TEMP
