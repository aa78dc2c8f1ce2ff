"""Reads the instructions of an HLO module's text: operation, source lines, operands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hloom.passes.ir.names import SourceLine
from hloom.xla.call_stacks import CallStacks

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(([^)]*)")
_OPERAND = re.compile(r"%?([\w.\-]+)(?:,|$)")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
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
      operands: the names of its operands.
      calls: the name of the computation that a fusion calls.
    """

    operation: str = ""
    source: SourceLine = field(default_factory=SourceLine)
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
        self._stacks = CallStacks(text)

    def get(self, name: str) -> HloInstruction:
        """The instruction of that name; an empty one where there is none."""
        if name not in self._read:
            self._read[name] = self._parse(self._rests.get(name, ""))
        return self._read[name]

    def _parse(self, rest: str) -> HloInstruction:
        opcode = _OPCODE.search(rest)
        return HloInstruction(
            operation=_first(_OP_NAME, rest),
            source=self._stacks.source(rest),
            target=_first(_TARGET, rest),
            is_typed=_TYPED_FFI in rest,
            opcode=opcode[1] if opcode else "",
            operands=tuple(_OPERAND.findall(opcode[2])) if opcode else (),
            calls=_first(_CALLS, rest),
        )

    def of_computation(self, name: str) -> Iterator[HloInstruction]:
        """The instructions of the computation of that name, the last one first."""
        return map(self.get, reversed(self._computations.get(name, [])))


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
