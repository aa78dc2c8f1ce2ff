"""Reads the instructions of an HLO module's text: operation, source lines, operands, callers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hloom.passes.ir.names import Frame, SourceLine

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(([^)]*)")
_OPERAND = re.compile(r"%?([\w.\-]+)(?:,|$)")
_CALLS = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_CALLERS = frozenset({"call", "fusion", "while"})
_INDEX = re.compile(r", index=(\d+)")
_TYPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_TYPED_FFI = "api_version=API_VERSION_TYPED_FFI"


@dataclass(frozen=True)
class HloInstruction:
    """One instruction of an HLO module; what its text lacks is empty.

    Attributes:
      operation: JAX's name of the operation it was made of, e.g. "jit(step)/jvp()/dot_general".
      source: where in the user's program it was written.
      target: of a custom call.
      is_typed: it calls a typed FFI handler.
      opcode: e.g. "fusion".
      operands: the names of its operands; of a parameter its number.
      calls: the name of the computation that a fusion or a call calls, or of a loop's body.
      index: which element of a tuple it takes; None where it takes none.
      element: the type of an array's elements, e.g. "bf16"; empty for a tuple.
      shape: the sizes of an array.
    """

    name: str = ""
    operation: str = ""
    source: SourceLine = field(default_factory=SourceLine)
    target: str = ""
    is_typed: bool = False
    opcode: str = ""
    operands: tuple[str, ...] = ()
    calls: str = ""
    index: int | None = None
    element: str = ""
    shape: tuple[int, ...] = ()


class HloInstructions:
    """The instructions of one module, by name."""

    def __init__(self, text: str) -> None:
        self._rests: dict[str, str] = {}
        self._computations: dict[str, list[str]] = {}
        self._computation_of: dict[str, str] = {}
        self._callers: dict[str, str] = {}
        names: list[str] = []
        computation = ""
        for line in text.splitlines():
            if found := _INSTRUCTION.match(line):
                self._rests[found["name"]] = found["rest"]
                self._computation_of[found["name"]] = computation
                names.append(found["name"])
                for called in _CALLS.findall(found["rest"]):
                    self._callers[called] = found["name"]
            elif found := _COMPUTATION.match(line):
                computation = found["name"]
                names = self._computations[computation] = []
        self._read: dict[str, HloInstruction] = {}
        self._stacks = CallStacks(text)

    def get(self, name: str) -> HloInstruction:
        """The instruction of that name; an empty one where there is none."""
        if name not in self._read:
            self._read[name] = self._parse(name, self._rests.get(name, ""))
        return self._read[name]

    def _parse(self, name: str, rest: str) -> HloInstruction:
        opcode = _OPCODE.search(rest)
        array, index = _TYPE.match(rest), _first(_INDEX, rest)
        return HloInstruction(
            name=name,
            operation=_ESCAPED.sub(r"\1", _first(_OP_NAME, rest)),
            source=self._stacks.source(rest),
            target=_first(_TARGET, rest),
            is_typed=_TYPED_FFI in rest,
            opcode=opcode[1] if opcode else "",
            operands=tuple(_OPERAND.findall(opcode[2])) if opcode else (),
            calls=_first(_CALLS, rest) if opcode and opcode[1] in _CALLERS else "",
            index=int(index) if index else None,
            element=array[1] if array else "",
            shape=tuple(map(int, filter(None, array[2].split(",")))) if array else (),
        )

    def of_computation(self, name: str) -> Iterator[HloInstruction]:
        """The instructions of the computation of that name, the last one first."""
        return map(self.get, reversed(self._computations.get(name, [])))

    def root(self, computation: str) -> HloInstruction:
        """The result of a computation, which XLA prints last; an empty one where there is none."""
        return next(self.of_computation(computation), HloInstruction())

    def caller(self, one: HloInstruction) -> HloInstruction:
        """The instruction that calls the computation which one stands in; an empty one of none."""
        return self.get(self._callers.get(self._computation_of.get(one.name, ""), ""))


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


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
        """Where an instruction was written, given its text."""
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
        """The calls that lead to a frame, the innermost first."""
        while number in self._calls:
            place, caller = self._calls[number]
            if int(place) in self._places:
                file, function, line = self._places[int(place)]
                name = _name(self._files, file)
                yield Frame(f"{name}:{line}", name, _name(self._functions, function))
            # XLA prints the caller's number plus 1, its own where there is none. Callers stand
            # before what they call: a damaged text leads round no circle.
            number = int(caller) - 1 if caller and int(caller) <= number else 0


def _rows(pattern: str, table: str) -> dict[int, list[str]]:
    """The rows of a table, by their numbers."""
    found = re.findall(rf"^(\d+) {pattern}", table, re.MULTILINE)
    return {int(number): row for number, *row in found}


def _name(names: dict[int, list[str]], number: str) -> str:
    return names[int(number)][0] if number and int(number) in names else ""
