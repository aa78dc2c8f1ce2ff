"""The call stacks in the text of an HLO module: the user's line of each instruction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hloom.passes.ir.names import Frame, SourceLine

_TABLE = re.compile(
    r"^(?P<name>FileNames|FunctionNames|FileLocations|StackFrames)\n(?P<rows>(?:\d+ .*\n)*)",
    re.MULTILINE,
)
_NAME = r'"(.*)"$'
_PLACE = r"\{file_name_id=(\d+)(?: function_name_id=(\d+))?.*? line=(\d+)"
_CALL = r"\{file_location_id=(\d+)(?: parent_frame_id=(\d+))?"
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FILE = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')


class CallStacks:
    """The tables of a module's text that hold the call stacks of its instructions."""

    def __init__(self, text: str) -> None:
        tables = {each["name"]: each["rows"] for each in _TABLE.finditer(text)}
        self._files = _rows(_NAME, tables.get("FileNames", ""))
        self._functions = _rows(_NAME, tables.get("FunctionNames", ""))
        self._places = _rows(_PLACE, tables.get("FileLocations", ""))
        self._calls = _rows(_CALL, tables.get("StackFrames", ""))
        self._known: dict[int, SourceLine] = {}

    def source(self, metadata: str) -> SourceLine:
        """Returns the user's line that an instruction comes from, given its metadata's text."""
        if file := _FILE.search(metadata):
            line = f"{file[1]}:{file[2]}" if file[2] else file[1]
            return SourceLine.of([Frame(line, file[1])])
        frame = _FRAME.search(metadata)
        if frame is None:
            return SourceLine()
        number = int(frame[1])
        if number not in self._known:
            self._known[number] = SourceLine.of(self._stack(number))
        return self._known[number]

    def _stack(self, number: int) -> Iterator[Frame]:
        """Yields the call stack of a frame, the innermost frame first."""
        while number in self._calls:
            place, caller = self._calls[number]
            if int(place) in self._places:
                file, function, line = self._places[int(place)]
                name = _name(self._files, file)
                yield Frame(f"{name}:{line}", name, _name(self._functions, function))
            # XLA prints the caller's number plus 1, its own where there is none. Callers stand
            # before what they call: a damaged text causes no endless loop.
            number = int(caller) - 1 if caller and int(caller) <= number else 0


def _rows(pattern: str, table: str) -> dict[int, list[str]]:
    """The rows of a table, by their numbers."""
    found = re.findall(rf"^(\d+) {pattern}", table, re.MULTILINE)
    return {int(number): row for number, *row in found}


def _name(names: dict[int, list[str]], number: str) -> str:
    return names[int(number)][0] if number and int(number) in names else ""
