"""The data flow in a block, value by value.

Most operations with several results need all operands for each result. Two do not: a result of a
barrier is one of its operands, and a result of a counted loop depends on what its carry needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hloom.passes.analysis.loops.counted import CountedLoop, counted_loop
from hloom.passes.analysis.program import FROM_OUTSIDE, Program
from hloom.passes.analysis.reach import reached
from hloom.passes.ir.ops import BARRIER


def made_of(program: Program, value: int) -> Sequence[int]:
    """Returns the operands that a value is computed from: for a barrier's result only its own
    operand."""
    position = program.producers[value]
    if position == FROM_OUTSIDE:
        return ()
    if program.names[position] != BARRIER:
        return program.operands[position]
    number = program.results[position].index(value)
    return (program.index[program.ops[position].operands[number]],)


def behind(program: Program, values: Iterable[int], ends: Collection[int] = ()) -> set[int]:
    """Returns values with all that they are computed from, back to ``ends``, inclusive."""
    return reached(values, lambda value: () if value in ends else made_of(program, value))


class CarryFlow:
    """The data flow in a block in which a counted loop may compute only some of its carries."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._loops: dict[int, CountedLoop | None] = {}
        self._bodies: dict[int, CarryFlow] = {}
        self._carries: dict[tuple[int, int], frozenset[int]] = {}

    def loop(self, position: int) -> CountedLoop | None:
        """Returns the operation as a counted loop; None for others."""
        if position not in self._loops:
            self._loops[position] = counted_loop(self.program.ops[position])
        return self._loops[position]

    def behind(self, values: Iterable[int]) -> set[int]:
        """Returns values with all that they are computed from."""
        return reached(values, self._made_of)

    def carries(self, position: int, results: Iterable[int]) -> set[int]:
        """Returns the numbers of a counted loop's carries that some of its results need, those
        results included."""
        loop = self.loop(position)
        assert loop is not None
        others = (number for number in results if number != loop.counter)
        return {loop.counter} | reached(
            others, lambda number: self._read_by(position, loop, number) - {loop.counter}
        )

    def _made_of(self, value: int) -> Sequence[int]:
        program = self.program
        position = program.producers[value]
        if position == FROM_OUTSIDE or self.loop(position) is None:
            return made_of(program, value)
        carried = [program.index[operand] for operand in program.ops[position].operands]
        number = program.results[position].index(value)
        read = [carried[each] for each in sorted(self.carries(position, [number]))]
        captured = set(program.operands[position]) - set(carried)
        return [*read, *sorted(captured)]

    def _read_by(self, position: int, loop: CountedLoop, number: int) -> frozenset[int]:
        """Returns the numbers of the carries from which an iteration computes the next value of
        one."""
        key = position, number
        if key not in self._carries:
            if position not in self._bodies:
                self._bodies[position] = CarryFlow(self.program.inside(loop.body))
            body = self._bodies[position]
            returned = body.program.index[loop.returned.operands[number]]
            arguments = len(loop.body.arguments)
            found = body.behind([returned])
            self._carries[key] = frozenset(value for value in found if value < arguments)
        return self._carries[key]
