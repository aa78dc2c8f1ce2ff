"""Reads the text of an HLO module: its computations, their instructions, and how often each runs.

Every reader of XLA's text uses `HloModule`. The text is that of `HloModule::ToString`, of a module
before or after optimization; that of a scheduled module has each computation's instructions in the
order of the schedule. A text that is damaged, or of another version, gives instructions with empty
fields, or none; nothing here raises.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from hloom.passes.ir.names import SourceLine
from hloom.xla.call_stacks import CallStacks

MOST_CHARACTERS = 20_000_000
"""The longest text that a compile reads for a figure: it takes some five seconds."""

DUMP_TO = "xla_dump_to"
"""XLA's option for the folder that it writes its texts of a compile to."""

_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(")
_BRACKET = re.compile(r"[()]")
_NAMED = re.compile(r"%([\w.\-#]+)")
_LAST_WORD = re.compile(r"([\w.\-#]+)\s*$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_BITS = re.compile(r"[a-z]+(\d{1,9})")
_MEMORY = re.compile(r"S\((\d{1,18})\)")
_CALLED = re.compile(
    r"\b(calls|to_apply|body|called_computation|true_computation|false_computation)=%?([\w.\-]+)"
)
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_SEVERAL = re.compile(r"\b(?:branch|called)_computations=\{([^}]*)\}")
_NUMBER = r"\d{1,18}"
"""A number that a program can have; a damaged text may hold longer ones."""

_TRIPS = re.compile(rf'"known_trip_count":\{{"n":"({_NUMBER})"')
_INDEX = re.compile(rf", index=({_NUMBER})\b")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_TYPED_FFI = "api_version=API_VERSION_TYPED_FFI"

_CONTROL_FLOW = frozenset({"async-start", "call", "call-start", "conditional", "while"})
"""Operations that run computations; an asynchronous one is listed by its first part."""


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of an array: XLA's name of its element type, e.g. "bf16", and its shape."""

    element: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Returns the bits of an element; 0 for a token."""
        bits = _BITS.match(self.element)
        return int(bits[1]) if bits else 8 * (self.element == "pred")

    @property
    def bytes(self) -> int:
        """Returns the array's bytes; 0 for a token."""
        return self.elements * self.bits // 8


def arrays_in(type_: str) -> tuple[Array, ...]:
    """Returns the arrays in the text of a type, tuples flattened."""
    return tuple(
        Array(element, tuple(map(int, re.findall(_NUMBER, shape))))
        for element, shape in _ARRAY.findall(type_)
    )


@dataclasses.dataclass(frozen=True)
class HloInstruction:
    """One instruction of an HLO module; fields that its text lacks are empty.

    Attributes:
      name: unique in its computation, and in an optimized module.
      computation: the name of the computation that contains it.
      type: the text of its result's type, with layouts.
      opcode: e.g. "fusion".
      arguments: the text between its brackets.
      attributes: the text after the arguments.
    """

    name: str = ""
    computation: str = ""
    type: str = ""
    opcode: str = ""
    arguments: str = ""
    attributes: str = ""
    stacks: CallStacks | None = dataclasses.field(default=None, repr=False, compare=False)

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """Returns the names of the operands; for a parameter its number."""
        if "%" in self.arguments:
            return tuple(_NAMED.findall(self.arguments))
        words = map(_LAST_WORD.search, self.arguments.split(","))
        return tuple(word[1] for word in words if word)

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Returns the arrays of the result; several for a tuple."""
        return arrays_in(self.type)

    @property
    def array(self) -> Array:
        """Returns the array of the result; an empty one for a tuple."""
        is_tuple = self.type.startswith("(") or not self.arrays
        return Array("", ()) if is_tuple else self.arrays[0]

    @property
    def memory_space(self) -> int:
        """Returns the memory space of the result; 0 is the device's ordinary memory."""
        return int(_first(_MEMORY, self.type) or 0)

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """Returns the names of the computations that it calls; for a loop its body."""
        several = (_NAMED.findall(each) for each in _SEVERAL.findall(self.attributes))
        single = [name for _, name in _CALLED.findall(self.attributes)]
        return (*single, *(name for names in several for name in names))

    @property
    def calls(self) -> str:
        """Returns the name of the computation that a fusion or call calls, or of a loop's body."""
        is_one = self.opcode in ("call", "fusion", "while")
        return next(iter(self.called), "") if is_one else ""

    @property
    def index(self) -> int | None:
        """Returns the index of the tuple element that it takes; None where it takes none."""
        found = _first(_INDEX, self.attributes)
        return int(found) if found else None

    @property
    def operation(self) -> str:
        """Returns JAX's name of the operation that it comes from, e.g.
        "jit(step)/jvp()/dot_general"."""
        return _ESCAPED.sub(r"\1", _first(_OP_NAME, self.attributes))

    @property
    def source(self) -> SourceLine:
        """Returns the user's line that it comes from."""
        return SourceLine() if self.stacks is None else self.stacks.source(self.attributes)

    @property
    def target(self) -> str:
        """Returns the target of a custom call."""
        return _first(_TARGET, self.attributes)

    @property
    def is_typed(self) -> bool:
        """Whether it calls a typed FFI handler."""
        return _TYPED_FFI in self.attributes

    @property
    def known_trips(self) -> int | None:
        """Returns a loop's trip count where XLA's text has it."""
        known = _first(_TRIPS, self.attributes)
        return int(known) if known else None


@dataclasses.dataclass(frozen=True)
class Runs:
    """How often a run of a program enters a computation: outside of loops, and in them."""

    outside: int = 0
    inside: int = 0

    @property
    def total(self) -> int:
        return self.outside + self.inside


class HloModule:
    """The text of one module.

    Attributes:
      header: its first line.
      entry: the name of the entry computation; empty where the text has none.
      is_whole: whether the text has an entry computation, and each computation's root and end.
    """

    def __init__(self, text: str) -> None:
        self.header = text.lstrip().partition("\n")[0]
        self.entry = ""
        has_ends = True
        self._rests: dict[str, dict[str, str]] = {}
        self._computation_of: dict[str, str] = {}
        self._roots: dict[str, str] = {}
        self._read: dict[tuple[str, str], HloInstruction] = {}
        self._stacks = CallStacks(text)
        computation = ""
        for line in text.splitlines():
            if found := _INSTRUCTION.match(line):
                name = found["name"]
                self._rests.setdefault(computation, {})[name] = found["rest"]
                self._computation_of[name] = computation
                if found["root"]:
                    has_ends &= computation not in self._roots
                    self._roots[computation] = name
            elif found := _HEAD.match(line):
                has_ends &= not computation
                computation = found["name"]
                self._rests[computation] = {}
                if found["entry"]:
                    self.entry = computation
            elif line == "}":
                has_ends &= computation in self._roots
                computation = ""
        self.is_whole = has_ends and not computation and bool(self.entry)

    @property
    def computations(self) -> tuple[str, ...]:
        """Returns the names of the computations in the text's order: callees before callers."""
        return tuple(self._rests)

    def get(self, name: str, computation: str | None = None) -> HloInstruction:
        """Returns the instruction of that name, first looked up in `computation` if that is given,
        then in all. An empty one where none exists."""
        where = computation
        if where is None or name not in self._rests.get(where, ()):
            where = self._computation_of.get(name)
        if where is None:
            return HloInstruction(name=name)
        key = where, name
        if key not in self._read:
            self._read[key] = self._parse(name, where, self._rests[where][name])
        return self._read[key]

    def operand(self, one: HloInstruction, number: int) -> HloInstruction:
        """Returns an operand of an instruction; an empty one where it has none of that number."""
        name = one.operands[number] if number < len(one.operands) else ""
        return self.get(name, one.computation)

    def of_computation(self, name: str) -> Iterator[HloInstruction]:
        """Yields the instructions of the computation of that name, in order."""
        return (self.get(each, name) for each in self._rests.get(name, ()))

    def root(self, computation: str) -> HloInstruction:
        """Returns the root instruction of a computation; an empty one where it has none."""
        last = next(reversed(self._rests.get(computation, {})), "")
        return self.get(self._roots.get(computation, last), computation)

    def undefined(self) -> str:
        """Returns a name that a run of the program uses and the text lacks; empty without one."""
        for computation in self.runs(in_kernels=True):
            for one in self.of_computation(computation):
                for called in one.called:
                    if called not in self._rests:
                        return called
                operands = () if one.opcode in ("constant", "parameter") else one.operands
                for name in operands:
                    if name not in self._rests[computation]:
                        return name
        return ""

    def caller(self, one: HloInstruction) -> HloInstruction:
        """Returns an instruction that calls the computation of `one`; an empty one if none does."""
        where, name = self._callers.get(one.computation, ("", ""))
        return self.get(name, where) if name else HloInstruction()

    def trips(self, loop: HloInstruction) -> int:
        """Returns a loop's trip count: the known one, else the constant that its condition compares
        with; 1 where neither exists, and for other instructions."""
        if loop.opcode != "while":
            return 1
        if loop.known_trips is not None:
            return loop.known_trips
        bounds = [
            int(each.arguments)
            for each in self.of_computation(_first(_CONDITION, loop.attributes))
            if each.opcode == "constant" and each.type.startswith("s32[]")
            if re.fullmatch(_NUMBER, each.arguments)
        ]
        return bounds[0] if len(bounds) == 1 else 1

    def runs(self, *, in_kernels: bool = False) -> Mapping[str, Runs]:
        """Counts how often a run of the program enters each computation; callers first.

        Each branch of a conditional counts as often as the conditional runs. Computations on single
        elements, e.g. the sum of a reduction, are left out; so are those of fusions, unless
        ``in_kernels``.
        """
        found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        if self.entry:
            found[self.entry] = [1, 0]
        order = self._callers_first(in_kernels)
        for name in order:
            outside, inside = found[name]
            for one, called in self._calling(name, in_kernels):
                times = self.trips(one)
                is_loop = one.opcode == "while"
                found[called][0] += 0 if is_loop else outside
                found[called][1] += (inside + outside * is_loop) * times
        return {name: Runs(*found[name]) for name in order}

    def _callers_first(self, in_kernels: bool) -> list[str]:
        """Returns the computations that a run enters. In a damaged text with a cycle of calls each
        appears once."""
        done: list[str] = []
        seen: set[str] = set()
        waiting = [(self.entry, False)] if self.entry else []
        while waiting:
            name, is_left = waiting.pop()
            if is_left:
                done.append(name)
            elif name not in seen:
                seen.add(name)
                waiting.append((name, True))
                called = [each for _, each in self._calling(name, in_kernels)]
                waiting += [(each, False) for each in called if each not in seen]
        return done[::-1]

    def _calling(self, name: str, in_kernels: bool) -> Iterator[tuple[HloInstruction, str]]:
        """Yields the instructions that run other computations, with each of those."""
        for one in self.of_computation(name):
            is_kernel = one.opcode.startswith("fusion")
            if one.opcode in _CONTROL_FLOW or (is_kernel and in_kernels):
                for called in one.called:
                    if called in self._rests:
                        yield one, called

    @functools.cached_property
    def _callers(self) -> dict[str, tuple[str, str]]:
        """Maps a computation to the last instruction that calls it: its computation and name."""
        return {
            called: (computation, name)
            for computation, rests in self._rests.items()
            for name, rest in rests.items()
            for _, called in _CALLED.findall(rest)
        }

    def _parse(self, name: str, computation: str, rest: str) -> HloInstruction:
        opcode = _OPCODE.search(rest)
        end = len(rest) if opcode is None else _closing(rest, opcode.end())
        if opcode is None or end == len(rest):
            return HloInstruction(name, computation, attributes=rest, stacks=self._stacks)
        return HloInstruction(
            name,
            computation,
            type=rest[: opcode.start()],
            opcode=opcode[1],
            arguments=rest[opcode.end() : end],
            attributes=rest[end + 1 :],
            stacks=self._stacks,
        )


def _closing(text: str, start: int) -> int:
    """Returns the position of the bracket that closes the one before ``start``; the end of the text
    without one."""
    depth = 1
    for bracket in _BRACKET.finditer(text, start):
        depth += 1 if bracket[0] == "(" else -1
        if not depth:
            return bracket.start()
    return len(text)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
