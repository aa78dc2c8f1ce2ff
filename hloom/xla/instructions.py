"""Reads the instructions of an HLO module's text: operation, source line, operands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(([^)]*)")
_OPERAND = re.compile(r"%?([\w.\-]+)(?:,|$)")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FILE = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_TYPED_FFI = "api_version=API_VERSION_TYPED_FFI"
_SECTION = re.compile(
    r"^(?P<name>FileNames|FunctionNames|FileLocations|StackFrames)\n(?P<rows>(?:\d+ .*\n)*)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class HloInstruction:
    """One instruction of an HLO module; what its text lacks is empty.

    Attributes:
      operation: JAX's name of the operation it was made of, e.g. "jit(step)/jvp()/dot_general".
      line: "file:line" of the user's program.
      target: of a custom call.
      is_typed: it calls a typed FFI handler.
      opcode: e.g. "fusion".
      operands: the names of its operands.
      calls: the name of the computation that a fusion calls.
    """

    operation: str = ""
    line: str = ""
    target: str = ""
    is_typed: bool = False
    opcode: str = ""
    operands: tuple[str, ...] = ()
    calls: str = ""


class HloInstructions:
    """The instructions of one module, by name."""

    def __init__(self, text: str) -> None:
        self._rests: dict[str, str] = {}
        self._computations: dict[str, list[str]] = {}
        names: list[str] = []
        for line in text.splitlines():
            if found := _INSTRUCTION.match(line):
                self._rests[found["name"]] = found["rest"]
                names.append(found["name"])
            elif found := _COMPUTATION.match(line):
                names = self._computations[found["name"]] = []
        self._read: dict[str, HloInstruction] = {}
        sections = {each["name"]: each["rows"] for each in _SECTION.finditer(text)}
        self._files = dict(re.findall(r'^(\d+) "(.*)"$', sections.get("FileNames", ""), re.M))
        self._locations = {
            number: (file, line)
            for number, file, line in re.findall(
                r"^(\d+) \{file_name_id=(\d+).*? line=(\d+)",
                sections.get("FileLocations", ""),
                re.M,
            )
        }
        self._frames = dict(
            re.findall(r"^(\d+) \{file_location_id=(\d+)", sections.get("StackFrames", ""), re.M)
        )

    def get(self, name: str) -> HloInstruction:
        """The instruction of that name; an empty one where there is none."""
        if name not in self._read:
            self._read[name] = self._parse(self._rests.get(name, ""))
        return self._read[name]

    def _parse(self, rest: str) -> HloInstruction:
        opcode = _OPCODE.search(rest)
        return HloInstruction(
            operation=_first(_OP_NAME, rest),
            line=self._line(rest),
            target=_first(_TARGET, rest),
            is_typed=_TYPED_FFI in rest,
            opcode=opcode[1] if opcode else "",
            operands=tuple(_OPERAND.findall(opcode[2])) if opcode else (),
            calls=_first(_CALLS, rest),
        )

    def of_computation(self, name: str) -> Iterator[HloInstruction]:
        """The instructions of the computation of that name, the last one first."""
        return map(self.get, reversed(self._computations.get(name, [])))

    def _line(self, rest: str) -> str:
        file = _FILE.search(rest)
        if file is not None:
            return f"{file[1]}:{file[2]}" if file[2] else file[1]
        frame = _FRAME.search(rest)
        location = self._locations.get(self._frames.get(frame[1], "")) if frame else None
        if location is None:
            return ""
        return f"{self._files.get(location[0], '')}:{location[1]}"


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
