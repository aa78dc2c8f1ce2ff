"""Looks up instructions in the text of an HLO module: where in the program they come from."""

from __future__ import annotations

import re
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$", re.MULTILINE)
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
class Instruction:
    """What an instruction says of itself.

    Attributes:
      operation: JAX's name of the operation it was made of, e.g. "jit(step)/jvp()/dot_general".
      line: "file:line" of the user's program; empty where the module does not tell.
      target: of a custom call; empty for other instructions.
      is_typed: it calls a typed FFI handler.
    """

    operation: str = ""
    line: str = ""
    target: str = ""
    is_typed: bool = False


class Instructions:
    """The instructions of one module, by name."""

    def __init__(self, text: str) -> None:
        self._rests = {each["name"]: each["rest"] for each in _INSTRUCTION.finditer(text)}
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

    def get(self, name: str) -> Instruction:
        """The instruction of that name; an empty one where there is none."""
        rest = self._rests.get(name, "")
        operation = _OP_NAME.search(rest)
        target = _TARGET.search(rest)
        return Instruction(
            operation=operation[1] if operation else "",
            line=self._line(rest),
            target=target[1] if target else "",
            is_typed=_TYPED_FFI in rest,
        )

    def _line(self, rest: str) -> str:
        file = _FILE.search(rest)
        if file is not None:
            return f"{file[1]}:{file[2]}" if file[2] else file[1]
        frame = _FRAME.search(rest)
        location = self._locations.get(self._frames.get(frame[1], "")) if frame else None
        if location is None:
            return ""
        return f"{self._files.get(location[0], '')}:{location[1]}"
