"""Which values of a scheduled HLO module are in one piece of memory, whatever XLA decides.

A loop's carry, a branch's result, what is updated in place, a donated argument and the result that
takes its place. The rules are those of XLA's HloAliasAnalysis.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

from hloom.xla.dataflow import Dataflow, Position, is_loop
from hloom.xla.hlo_module import Computation, Index, Instruction

_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
_SEEN_THROUGH = frozenset({"bitcast", "convert", "copy", "reshape"})


class SharedMemory:
    """Groups of values that share memory."""

    def __init__(self, dataflow: Dataflow) -> None:
        self._dataflow = dataflow
        self._parent: dict[Position, Position] = {}
        for positions in self._sharing():
            values = [v for position in positions for v in dataflow.values_at(position)]
            for value in values[1:]:
                self.join(values[0], value)

    def join(self, one: Position, other: Position) -> None:
        """Puts two values, and all that share memory with them, into one group."""
        first, second = self.group_of(one), self.group_of(other)
        if first != second:
            # The smaller name is the group's, so that the order of joining makes no difference.
            self._parent[max(first, second)] = min(first, second)

    def group_of(self, value: Position) -> Position:
        """The same for all values of one group."""
        root = value
        while (parent := self._parent.get(root)) is not None:
            root = parent
        while value != root:
            self._parent[value], value = root, self._parent[value]
        return root

    def groups(self) -> list[list[Position]]:
        """All values, those of one group by begin."""
        found: dict[Position, list[Position]] = defaultdict(list)
        for value in self._dataflow.ranges:
            found[self.group_of(value)].append(value)
        ranges = self._dataflow.ranges
        for group in found.values():
            group.sort(key=lambda value: (ranges[value].start, ranges[value].end, value))
        return list(found.values())

    def hand_over(self) -> None:
        """Ends each value where the next one of its group begins."""
        for group in self.groups():
            for value, following in itertools.pairwise(group):
                first, second = self._dataflow.ranges[value], self._dataflow.ranges[following]
                second.end = max(first.end, second.end)
                first.end = min(first.end, second.start)

    def _sharing(self) -> Iterator[Iterable[Position]]:
        """Positions whose values share memory."""
        flow = self._dataflow
        for instruction in flow.order:
            if is_loop(instruction):
                body, condition = (flow.module.computations[id_] for id_ in instruction.called)
                places = (
                    instruction.operands[0],
                    condition.parameters[0].id,
                    body.parameters[0].id,
                    body.root_id,
                    instruction.id,
                )
                for index in instruction.shape.indices:
                    yield [(place, index) for place in places]
            elif instruction.opcode == "conditional":
                roots = [one.root_id for one in flow.run_by(instruction)]
                for index in instruction.shape.indices:
                    yield [(place, index) for place in (*roots, instruction.id)]
            for made, operand, read in _in_place(instruction, flow.module.computations):
                yield (instruction.id, made), (instruction.operands[operand], read)
        entry = flow.module.entry
        for made, number, read in flow.module.aliases:
            yield (entry.root_id, made), (entry.parameters[number].id, read)


def _in_place(
    instruction: Instruction, computations: dict[int, Computation]
) -> Iterator[tuple[Index, int, Index]]:
    """Places in a result, each with the operand and the place in it that it is written over."""
    yield from instruction.aliases
    if instruction.opcode in _IN_PLACE:
        yield (), 0, ()
    elif instruction.opcode == "fusion" and not instruction.aliases:
        yield from _updated_by(computations[instruction.called[0]])


def _updated_by(fused: Computation) -> Iterator[tuple[Index, int, Index]]:
    """The same for a fused computation: its root updates slices of what it is given."""
    root = fused.root
    is_tuple = root.opcode == "tuple"
    for number, id_ in enumerate(root.operands if is_tuple else (root.id,)):
        made = _through(fused, id_)
        if made.opcode in _IN_PLACE:
            updated = _through(fused, made.operands[0])
            if updated.opcode == "parameter":
                yield ((number,) if is_tuple else ()), updated.parameter, ()


def _through(fused: Computation, id_: int) -> Instruction:
    """The instruction before any that only look at the same memory otherwise."""
    found = fused.instructions[id_]
    while found.opcode in _SEEN_THROUGH:
        found = fused.instructions[found.operands[0]]
    return found
