"""An optimised HLO module, read from its proto: instructions, schedule, source lines.

The text of the same module does not name instructions as a buffer assignment does, by number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from hloom.xla.protobuf import Message

Index = tuple[int, ...]
"""Where in a tuple, and in tuples in it; empty for the whole."""

_TUPLE, _OPAQUE, _TOKEN = 13, 14, 17
_POINTER_BYTES = 8
_TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8),
    2: ("s8", 8),
    3: ("s16", 16),
    4: ("s32", 32),
    5: ("s64", 64),
    6: ("u8", 8),
    7: ("u16", 16),
    8: ("u32", 32),
    9: ("u64", 64),
    10: ("f16", 16),
    11: ("f32", 32),
    12: ("f64", 64),
    _OPAQUE: ("opaque", 0),
    15: ("c64", 64),
    16: ("bf16", 16),
    _TOKEN: ("token", 0),
    18: ("c128", 128),
    19: ("f8e5m2", 8),
    20: ("f8e4m3fn", 8),
    21: ("s4", 4),
    22: ("u4", 4),
    23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8),
    26: ("s2", 2),
    27: ("u2", 2),
    28: ("f8e4m3", 8),
    29: ("f8e3m4", 8),
    30: ("s1", 1),
    31: ("u1", 1),
    32: ("f4e2m1fn", 4),
    33: ("f8e8m0fnu", 8),
}
"""Name and bits of XLA's element types (PrimitiveType in its xla_data.proto)."""

_UNKNOWN_TYPE = ("unknown", 0)


@dataclass(frozen=True)
class Shape:
    """A type of HLO.

    Attributes:
      element_type: as XLA numbers it.
      dimensions: empty for scalars and tuples.
      parts: of a tuple.
    """

    element_type: int
    dimensions: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()

    @classmethod
    def read(cls, message: Message) -> Shape:
        """A ShapeProto."""
        return cls(
            element_type=message.integer(2),
            dimensions=tuple(message.integers(3)),
            parts=tuple(cls.read(part) for part in message.messages(4)),
        )

    @functools.cached_property
    def indices(self) -> tuple[Index, ...]:
        """Of the shape itself and of all in it, outermost first."""
        inner = ((n, *index) for n, part in enumerate(self.parts) for index in part.indices)
        return ((), *inner)

    def at(self, index: Index) -> Shape:
        """The shape there."""
        found = self
        for number in index:
            found = found.parts[number]
        return found

    @property
    def bytes(self) -> int:
        """In memory; of a tuple, its table of pointers. Padding is not counted."""
        if self.element_type == _TUPLE:
            return _POINTER_BYTES * len(self.parts)
        bits = _TYPES.get(self.element_type, _UNKNOWN_TYPE)[1]
        return math.ceil(math.prod(max(0, size) for size in self.dimensions) * bits / 8)

    def __str__(self) -> str:
        if self.element_type == _TUPLE:
            return f"({', '.join(map(str, self.parts))})"
        name = _TYPES.get(self.element_type, _UNKNOWN_TYPE)[0]
        return f"{name}[{','.join(map(str, self.dimensions))}]"


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
      id: by which the schedule, operands and buffer assignments name it.
      operands: ids.
      fusion: of a fusion, its kind, e.g. "kLoop".
      called: ids of computations, in the order of their use.
      part: which one a get-tuple-element takes.
      parameter: which one a parameter is.
      aliases: pairs of places in the result and in operands (operand number, index) that XLA was
        told share memory.
      operation: JAX's name of what it was made of.
      line: "file:line" of the user's program; empty where it is not known.
    """

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...]
    fusion: str
    called: tuple[int, ...]
    part: int
    parameter: int
    aliases: tuple[tuple[Index, int, Index], ...]
    operation: str
    line: str


class Computation:
    """A sequence of instructions, read when they are asked for."""

    def __init__(self, message: Message, order: list[int] | None, module: Module) -> None:
        self._message, self._order, self._module = message, order, module
        self.id = message.integer(5)
        self.root_id = message.integer(6)

    @property
    def is_scheduled(self) -> bool:
        """Whether XLA put it in an order; what runs inside a kernel has none."""
        return self._order is not None

    @functools.cached_property
    def instructions(self) -> dict[int, Instruction]:
        """By id, in the order in which they run."""
        read = (self._module.read_instruction(one) for one in self._message.messages(2))
        found = {one.id: one for one in read}
        return found if self._order is None else {id_: found[id_] for id_ in self._order}

    @property
    def root(self) -> Instruction:
        return self.instructions[self.root_id]

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """By number."""
        found = [one for one in self.instructions.values() if one.opcode == "parameter"]
        return tuple(sorted(found, key=lambda one: one.parameter))


class Module:
    """A module.

    Attributes:
      computations: by id.
      aliases: results that take a donated argument's memory: the place in the result, the
        argument's number and the place in it.
    """

    def __init__(self, data: bytes) -> None:
        """Reads a serialized HloModuleProto. Raises ValueError where it is none, or unordered."""
        message = Message(data)
        self._files = message.message(17).texts(1)
        self._frames = _frames(message.message(17))
        orders = {
            entry.integer(1): entry.message(2).integers(1)
            for entry in message.message(7).messages(1)
        }
        every = (Computation(one, orders.get(one.integer(5)), self) for one in message.messages(3))
        self.computations = {one.id: one for one in every}
        self.aliases: tuple[tuple[Index, int, Index], ...] = tuple(
            (tuple(entry.integers(1)), entry.integer(2), tuple(entry.integers(3)))
            for entry in message.message(8).messages(1)
        )
        entry_id = message.integer(6)
        if entry_id not in self.computations:
            raise ValueError("the module has no entry computation")
        self.entry = self.computations[entry_id]
        if not self.entry.is_scheduled:
            raise ValueError("the module is not scheduled: it says no order of its instructions")

    def read_instruction(self, message: Message) -> Instruction:
        """An HloInstructionProto."""
        metadata = message.message(7)
        return Instruction(
            id=message.integer(35),
            name=message.text(1),
            opcode=message.text(2),
            shape=Shape.read(message.message(3)),
            operands=tuple(message.integers(36)),
            fusion=message.text(11),
            called=tuple(message.integers(38)),
            part=message.integer(13),
            parameter=message.integer(9),
            aliases=tuple(_aliases(message)),
            operation=metadata.text(2),
            line=self._line(metadata),
        )

    def _line(self, metadata: Message) -> str:
        file, line = metadata.text(3), metadata.integer(4)
        if not file:
            frame = metadata.integer(15)
            if not 0 < frame <= len(self._frames):
                return ""
            number, line = self._frames[frame - 1]
            if not 0 < number <= len(self._files):
                return ""
            file = self._files[number - 1]
        return f"{file}:{line}" if line else file


def _aliases(message: Message) -> Iterator[tuple[Index, int, Index]]:
    for entry in message.messages(74):
        yield tuple(entry.integers(1)), entry.integer(2), tuple(entry.integers(3))


def _frames(index: Message) -> list[tuple[int, int]]:
    """File number and line of each stack frame; all numbers count from 1."""
    places = [(place.integer(1), place.integer(3)) for place in index.messages(3)]
    numbers = [frame.integer(1) for frame in index.messages(4)]
    return [places[n - 1] if 0 < n <= len(places) else (0, 0) for n in numbers]
