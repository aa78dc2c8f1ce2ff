"""The origins of a compiled program's values: the operation and the user's line.

The origin of a loop's stack is the operation that computes the stored value, not the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hloom.passes.ir.names import split_name
from hloom.xla.hlo import HloInstruction, HloModule


@dataclass(frozen=True)
class HloValue:
    """A value with its place in memory and its live range.

    Attributes:
      instruction: the name of the instruction that defines it.
      index: where in that instruction's result, as "{0}"; empty for the whole result.
      type: e.g. "f32[8,8]".
      allocation: the number of the allocation that holds it.
      kind: the allocation's kind. A donated argument is in an output's allocation.
      offset, bytes: its offset in the allocation and its size.
      start, end: the first and the last instruction of its live range, both included.
    """

    instruction: str
    index: str
    type: str
    allocation: int
    kind: str
    offset: int
    bytes: int
    start: int
    end: int

    @property
    def place(self) -> int | None:
        """Returns its index as a tuple element; None where it is none."""
        first = self.index.strip("{}").partition(",")[0]
        return int(first) if first else None


@dataclass(frozen=True)
class HloOrigin:
    """The operation that computes a value.

    Attributes:
      made_by: the instruction whose metadata has the operation and the line.
      stacked: the number of its results that a loop stacks in the value; 1 where none does.
      copy_of: the narrower type that XLA has converted the value from; empty where it has not.
    """

    made_by: HloInstruction
    stacked: int = 1
    copy_of: str = ""


_MOST_MAKERS = 64
"""The most values in the same memory, one after the other, that are searched for a source line."""

_MOST_STEPS = 256
"""The most instructions that a value is followed through; no program nests as deep."""

_FORWARDING = frozenset({"conditional", "copy", "parameter", "while"})
"""Opcodes of instructions whose results another instruction computes."""

_SAME = frozenset({"bitcast", "copy", "optimization-barrier"})
"""Opcodes of instructions that return their operand in another layout."""

_SHAPED = frozenset({"broadcast", "reshape", "transpose"})
"""Opcodes that a loop applies to a value before storing it, or after reading it."""

_IN_LOOP = "/while/body/"

_CONVERTED_BY_USERS = "convert_element_type"


class Origins:
    """Finds the instruction with the best metadata on where a value comes from.

    XLA's own instructions, and some fused ones, have no source line; then an instruction that
    writes to the same memory, one inside the fusion, or one that computes an operand is used.
    """

    def __init__(self, values: Iterable[HloValue], instructions: HloModule) -> None:
        self._instructions = instructions
        self._runs: dict[HloValue, list[HloValue]] = {}
        """By value, those that hand one piece of memory on to each other, the last one first."""
        last: dict[tuple[int, int], HloValue] = {}
        for value in sorted(values, key=lambda value: (value.start, value.end)):
            place = value.allocation, value.offset
            before = last.get(place)
            # Memory that one value passes on to the next is in use without a gap.
            follows = before is not None and value.start <= before.end
            run = self._runs[before] if before is not None and follows else []
            run.insert(0, value)
            self._runs[value] = run
            last[place] = value

    def of(self, value: HloValue) -> HloOrigin:
        """Returns the origin of a value."""
        own = self._instructions.get(value.instruction)
        if own.opcode == "parameter" and not value.start:
            return HloOrigin(own)
        found = self._followed(own, value.place)
        if not value.type.startswith("f32"):
            found = replace(found, copy_of="")
        is_argument = found.made_by.opcode == "parameter" and found.made_by.operation
        if found.made_by.source.line or (found.copy_of and is_argument):
            return found
        if own.source.line and own.opcode not in _FORWARDING:
            return HloOrigin(own)
        named = next((each for each in self._candidates(value, own) if each.source.line), own)
        return HloOrigin(named if named.operation or not own.operation else own)

    def _candidates(self, value: HloValue, own: HloInstruction) -> Iterator[HloInstruction]:
        makers = [] if own.opcode in _FORWARDING else [own]
        for other in self._runs[value][:_MOST_MAKERS]:
            maker = self._instructions.get(other.instruction)
            makers += [] if maker.opcode in _FORWARDING else [maker]
        yield from makers
        for maker in makers:
            yield from reversed([*self._instructions.of_computation(maker.calls)])
        yield from map(self._instructions.get, own.operands)
        yield own

    def _followed(self, one: HloInstruction, index: int | None) -> HloOrigin:
        """Returns the instruction that computes the value, past those that only pass it on."""
        origin, sliced = HloOrigin(one), False
        handed_on: HloInstruction | None = None
        done: set[tuple[str, int | None]] = set()
        while (one.name, index) not in done and len(done) < _MOST_STEPS:
            done.add((one.name, index))
            if one.opcode in ("call", "fusion", "while"):
                before, one = one, self._instructions.root(one.calls)
                # A fusion of one operation has metadata where its inner instructions may have none.
                if before.opcode != "while" and one.opcode not in _FOLLOWED:
                    one = one if one.source.line else before
                    break
            elif one.opcode == "get-tuple-element" and one.operands:
                one, index = self._instructions.get(one.operands[0]), one.index
            elif one.opcode == "tuple" and index is not None and index < len(one.operands):
                one, index = self._instructions.get(one.operands[index]), None
            elif one.opcode == "parameter":
                one, index = self._given(one, index)
            elif one.opcode == "dynamic-update-slice" and len(one.operands) > 1:
                whole, stored = one.array.shape, self._instructions.get(one.operands[1])
                part = stored.array.shape
                times = whole[0] // part[0] if whole and any(part[:1]) else 1
                origin, one = replace(origin, stacked=max(origin.stacked, times)), stored
            elif _hands_on(one) and one.operands:
                operand = self._instructions.get(one.operands[0])
                if one.opcode == "convert" and _is_wider(one.array.element, operand.array.element):
                    origin = replace(origin, copy_of=operand.array.element)
                if one.opcode == "dynamic-slice" or one.opcode in _SHAPED:
                    handed_on, sliced = handed_on or one, sliced or one.opcode == "dynamic-slice"
                one = operand
            else:
                break
        if handed_on is not None and (origin.stacked == 1 or not one.source.line):
            # Only for a stack is it certain that the loop stores the value, and not the user's
            # program.
            return HloOrigin(handed_on)
        return replace(origin, made_by=one, stacked=1 if sliced else origin.stacked)

    def _given(self, one: HloInstruction, index: int | None) -> tuple[HloInstruction, int | None]:
        """Returns the value of a parameter: an operand of the call, or the loop body's result."""
        caller = self._instructions.caller(one)
        if caller.opcode == "while":
            if caller.operands and self._is_invariant(caller, one, index):
                return self._instructions.get(caller.operands[0]), index
            return self._instructions.root(caller.calls), index
        number = int(one.operands[0]) if one.operands and one.operands[0].isdecimal() else -1
        if caller.opcode in ("call", "fusion") and 0 <= number < len(caller.operands):
            return self._instructions.get(caller.operands[number]), index
        return one, index

    def _is_invariant(
        self, loop: HloInstruction, parameter: HloInstruction, index: int | None
    ) -> bool:
        """Whether a loop's body returns an element of its parameter unchanged."""
        returned = self._instructions.root(loop.calls)
        if index is None or returned.opcode != "tuple" or index >= len(returned.operands):
            return False
        one = self._instructions.get(returned.operands[index])
        while one.opcode in _SAME and one.operands:
            one = self._instructions.get(one.operands[0])
        return (one.opcode, one.index, one.operands[:1]) == (
            "get-tuple-element", index, (parameter.name,)
        )  # fmt: skip


_FOLLOWED = frozenset(
    {"call", "convert", "dynamic-slice", "dynamic-update-slice", "fusion", "get-tuple-element"}
    | {"parameter", "tuple", "while"}
    | _SAME
    | _SHAPED
)
"""Opcodes of fusions' results that another instruction in the fusion, or before it, computes."""


def _hands_on(one: HloInstruction) -> bool:
    """Whether the instruction only passes its operand on, as a reader would see it."""
    if one.opcode == "convert":
        return split_name(one.operation)[1] != _CONVERTED_BY_USERS
    if one.opcode == "dynamic-slice":
        return _IN_LOOP in one.operation
    return one.opcode in _SAME or one.opcode in _SHAPED


def _is_wider(element: str, operand: str) -> bool:
    """Whether a conversion is one that XLA adds to compute 16-bit values in 32 bits."""
    return element == "f32" and operand in ("bf16", "f16")
