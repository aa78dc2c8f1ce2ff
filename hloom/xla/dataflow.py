"""When each value of a scheduled HLO module is made and read last.

Time runs over the whole program in the order in which XLA lays it out: a loop's condition and body
stand before the loop, a branch before its conditional. The rules are those of XLA's HloLiveRange
and HloDataflowAnalysis (xla/hlo/utils/hlo_live_range.cc, xla/hlo/analysis/).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hloom.xla.hlo_module import Computation, Index, Instruction, Module

Position = tuple[int, Index]
"""An instruction's id and a place in its result. A value is named by the one that makes it."""

_PASSING_ON = frozenset({"add-dependency", "bitcast", "domain", "optimization-barrier"})
_PAIRS = frozenset({"all-gather-start", "collective-permute-start", "send"})
"""Their results hold their operands first, then what is made."""
_TAKES_SECOND = frozenset({"all-gather-done", "async-done", "collective-permute-done"})
_TAKES_FIRST = frozenset({"copy-done", "recv-done"})
_RUNS_OTHERS = frozenset({"async-start", "call", "conditional", "while"})
_READS_TABLE_ONLY = frozenset({"copy", "get-tuple-element"})
"""Of a tuple they read no more than its table of pointers."""


@dataclass
class Range:
    """The first and the last time of a value, both included."""

    start: int
    end: int


class Dataflow:
    """The values of a module over time.

    Attributes:
      module: whose values they are.
      order: the instructions by time.
      ranges: of each value.
      returned: values that the program returns.
      given: ids of its parameters.
    """

    def __init__(
        self, module: Module, is_made: Callable[[Instruction, Index], bool] | None = None
    ) -> None:
        """Follows the values of a module.

        Args:
          is_made: whether an instruction makes a value at a place in its result; by XLA's rules
            where it is not given.
        """
        self.module = module
        self._is_made = is_made
        self.order: list[Instruction] = []
        self._time: dict[int, int] = {}
        self._span: dict[int, tuple[int, int]] = {}
        self._home: dict[int, Computation] = {}
        self._callers: dict[int, list[Instruction]] = defaultdict(list)
        self._until: dict[int, int] = {}
        """By computation that runs beside others, the time at which it is waited for."""
        self._lay_out(module.entry)
        self._find_waits()
        self._passing: dict[Position, bool] = {}
        self._resolved: dict[Position, frozenset[Position]] = {}
        self.ranges: dict[Position, Range] = {}
        self._find_ranges()
        self.given = frozenset(parameter.id for parameter in module.entry.parameters)
        root = module.entry.root
        self.returned = frozenset(
            value for index in root.shape.indices for value in self.values_at((root.id, index))
        )

    def instruction(self, position: Position) -> Instruction:
        """The instruction at a position."""
        return self.order[self._time[position[0]]]

    def values_at(self, position: Position) -> frozenset[Position]:
        """The values that may be at a position."""
        found = self._resolved.get(position)
        if found is None:
            found = self._resolved[position] = frozenset(self._resolve(position))
        return found

    def run_by(self, instruction: Instruction) -> list[Computation]:
        """The computations whose instructions stand in the schedule before this one."""
        if instruction.opcode not in _RUNS_OTHERS:
            return []
        called = [self.module.computations[id_] for id_ in instruction.called]
        in_order = reversed(called) if is_loop(instruction) else called
        return [one for one in in_order if one.is_scheduled]

    def _lay_out(self, computation: Computation) -> None:
        if computation.id in self._span or not computation.is_scheduled:
            return
        start = len(self.order)
        for instruction in computation.instructions.values():
            for inner in self.run_by(instruction):
                self._callers[inner.id].append(instruction)
                self._lay_out(inner)
            self._home[instruction.id] = computation
            self._time[instruction.id] = len(self.order)
            self.order.append(instruction)
        self._span[computation.id] = (start, len(self.order))

    def _find_waits(self) -> None:
        begins: dict[int, Instruction] = {}
        """By instruction of an asynchronous chain, its first one."""
        for time, instruction in enumerate(self.order):
            if instruction.opcode == "async-start":
                begins[instruction.id] = instruction
            elif instruction.opcode in ("async-update", "async-done"):
                first = begins.get(instruction.operands[0])
                if first is not None:
                    begins[instruction.id] = first
                    self._until.update((one.id, time) for one in self.run_by(first))

    def _makes(self, instruction: Instruction, index: Index) -> bool:
        if self._is_made is not None:
            return self._is_made(instruction, index)
        loop = instruction if is_loop(instruction) else self._loop_of(instruction)
        if loop is not None:
            return not self._passes(loop, index)
        return instruction.opcode == "conditional" or not self._sources(instruction, index)

    def _resolve(self, position: Position) -> Iterator[Position]:
        instruction, index = self.instruction(position), position[1]
        if self._makes(instruction, index):
            yield position
            return
        for source in self._sources(instruction, index):
            yield from self.values_at(source)

    def _loop_of(self, instruction: Instruction) -> Instruction | None:
        """The loop whose carry a parameter is."""
        if instruction.opcode != "parameter":
            return None
        callers = self._callers[self._home[instruction.id].id]
        return callers[0] if callers and is_loop(callers[0]) else None

    def _passes(self, loop: Instruction, index: Index) -> bool:
        """Whether the loop's body hands this part of its carry on as it is."""
        key = (loop.id, index)
        if key not in self._passing:
            body = self.module.computations[loop.called[0]]
            origin = self._origin((body.root_id, index))
            self._passing[key] = origin == (body.parameters[0].id, index)
        return self._passing[key]

    def _origin(self, position: Position) -> Position:
        """Back from a position as far as it is sure, within its computation."""
        while True:
            instruction, index = self.instruction(position), position[1]
            if instruction.opcode == "parameter":
                return position
            if is_loop(instruction) and not self._passes(instruction, index):
                return position
            sources = self._sources(instruction, index)
            if len(sources) != 1:
                return position
            position = sources[0]

    def _sources(self, instruction: Instruction, index: Index) -> list[Position]:
        """Where what is at a place in a result comes from, where the instruction only passes on.

        Of a loop's carry, what it is before the loop.
        """
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "get-tuple-element":
            return [(operands[0], (instruction.part, *index))]
        if opcode == "tuple":
            return [(operands[index[0]], index[1:])] if index else []
        if opcode in _PASSING_ON or opcode in ("all-reduce-done", "async-update", "while"):
            return [(operands[0], index)]
        if opcode == "parameter":
            callers = self._callers[self._home[instruction.id].id]
            return [self._handed_in(caller, instruction, index) for caller in callers]
        if opcode in ("call", "conditional"):
            return [(one.root_id, index) for one in self.run_by(instruction)]
        if opcode in _TAKES_SECOND:
            return [(operands[0], (1, *index))]
        if opcode in _TAKES_FIRST:
            return (
                [(operands[0], (0, *index))] if opcode == "copy-done" or index[:1] == (0,) else []
            )
        return self._sources_of_start(instruction, index)

    def _sources_of_start(self, instruction: Instruction, index: Index) -> list[Position]:
        """Of the first half of what runs beside others."""
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "copy-start":
            return [(operands[0], index[1:])] if index[:1] == (1,) else []
        if opcode == "async-start":
            if index[:1] == (0,) and len(index) > 1:
                return [(operands[index[1]], index[2:])]
            if index[:1] == (1,):
                return [(one.root_id, index[1:]) for one in self.run_by(instruction)]
        elif opcode in _PAIRS and index[:1] == (0,):
            if len(operands) == 1 or opcode == "send":
                return [(operands[0], index[1:])]
            return [(operands[index[1]], index[2:])] if len(index) > 1 else []
        return []

    def _handed_in(self, caller: Instruction, parameter: Instruction, index: Index) -> Position:
        if caller.opcode == "conditional":
            branch = caller.called.index(self._home[parameter.id].id)
            return caller.operands[branch + 1], index
        return caller.operands[parameter.parameter], index

    def _find_ranges(self) -> None:
        donated = {(number, index) for _, number, index in self.module.aliases}
        for time, instruction in enumerate(self.order):
            computation = self._home[instruction.id]
            start, end = self._span[computation.id]
            is_parameter = instruction.opcode == "parameter"
            is_root = instruction.id == computation.root_id
            last = end if is_root else time
            begin = start if is_parameter else time
            until = max(last, self._until.get(computation.id, last))
            if is_root and self._runs_beside(computation):
                begin = end
            for index in instruction.shape.indices:
                position = (instruction.id, index)
                if self._makes(instruction, index):
                    self._reach(position, begin, until)
                    number = (instruction.parameter, index)
                    if is_parameter and computation is self.module.entry and number not in donated:
                        self._reach(position, begin, end)
                else:
                    for value in self.values_at(position):
                        self._reach(value, last, last)
            self._read(instruction, time)

    def _runs_beside(self, computation: Computation) -> bool:
        """Whether a computation runs beside others: it is there when it has been started."""
        callers = self._callers[computation.id]
        return bool(callers) and callers[0].opcode == "async-start"

    def _reach(self, value: Position, start: int, end: int) -> None:
        found = self.ranges.get(value)
        if found is None:
            self.ranges[value] = Range(start, end)
        else:
            found.start, found.end = min(found.start, start), max(found.end, end)

    def _read(self, instruction: Instruction, time: int) -> None:
        """Prolongs what an instruction reads."""
        if instruction.opcode == "tuple" or (
            instruction.opcode == "call" and self.run_by(instruction)
        ):
            return
        if is_loop(instruction):
            # What a loop begins with is done with when its body begins.
            body = self.module.computations[instruction.called[0]]
            time = self._time[body.parameters[0].id]
        for operand in dict.fromkeys(instruction.operands):
            whole = instruction.opcode not in _READS_TABLE_ONLY
            indices = self.instruction((operand, ())).shape.indices
            for index in indices if whole else indices[:1]:
                for value in self.values_at((operand, index)):
                    self._reach(value, self.ranges[value].start, time)


def is_loop(instruction: Instruction) -> bool:
    """Whether an instruction is a loop; it names its body first, then its condition."""
    return instruction.opcode == "while"
