"""Decides the contents of each loop of a flow, the values that leave it, and its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from jax.extend.mlir import ir

from ..analysis.dimension_flow.result import DimensionFlow
from ..analysis.program import Node
from ..framework.errors import NotPossibleError
from ..framework.tables import Cell, Kind
from ..framework.text import pluralize
from ..ir import walk
from ..ir.types import element_bits
from .contents import CopyFinder, LoopCopies, PartApart, parts_apart
from .devices import DeviceParts, parts_of
from .exits import AccumulatorRule, LoopExit, SumPlaces, leaving, widened
from .gathers import Gather
from .placement import LoopContents, LoopPlace, LoopValues, placed
from .program import LoopProgram

LOOP_COLUMNS = {
    "operations": Kind.COUNT,
    "of the products": Kind.SHARE,
    "leaves the loop": Kind.TEXT,
    "why it ends": Kind.TEXT,
}
"""The columns of a table of loops, after those that name the owner."""


@dataclass(frozen=True)
class PhaseLoop:
    """One loop.

    Attributes:
      exits: the values that leave it.
      copies: the operations in its body.
    """

    exits: tuple[LoopExit, ...]
    copies: LoopCopies


@dataclass(frozen=True)
class Schedule:
    """The chunks of a dimension, in order.

    Attributes:
      length: the elements of a chunk.
      trips: how many chunks of that length a loop has.
      rest: the elements of a last shorter chunk, which is done after the loop; 0 without one.
    """

    length: int
    trips: int
    rest: int

    @classmethod
    def of(cls, size: int, chunks: int) -> Schedule:
        """Returns equal chunks of a dimension: so many, or as few less as equal lengths make.

        Raises ValueError where there are less than 2, or more than the dimension has elements.
        """
        if not 2 <= chunks <= size:
            raise ValueError(f"chunks of a dimension of {size}: want 2 to {size}: {chunks}")
        length = -(-size // chunks)
        return cls(length, *divmod(size, length))

    @property
    def chunks(self) -> int:
        return self.trips + bool(self.rest)

    def text(self, chunks: str = "chunks") -> str:
        """Returns e.g. "4 chunks of 16, the last of 3", with the given name of chunks."""
        text = f"{self.chunks} {chunks} of {self.length}"
        return f"{text}, the last of {self.rest}" if self.rest else text


@dataclass(frozen=True)
class LoopsPlan:
    """The loops of a flow.

    Attributes:
      program: the program, and the flow through it.
      schedule: the chunks that each loop has.
      loops: one for each phase.
      apart: values that are computed before the loops although the loops compute them too.
      gone: operations that the loops replace, in the order of the program.
      parts: the devices that run the loops each by itself; None where XLA divides the loops.
      gathers: the values that are gathered before the loops.
      widens_moved: a product is computed in the type of its accumulator also where the term is its
        transpose or a reshape of it.
    """

    program: LoopProgram
    schedule: Schedule
    loops: tuple[PhaseLoop, ...]
    apart: tuple[PartApart, ...]
    gone: tuple[Node, ...]
    parts: DeviceParts | None
    gathers: tuple[Gather, ...] = ()
    widens_moved: bool = False

    @property
    def flow(self) -> DimensionFlow:
        return self.program.flow

    @property
    def exits(self) -> tuple[LoopExit, ...]:
        return tuple(found for loop in self.loops for found in loop.exits)

    @property
    def handed_on(self) -> frozenset[int]:
        """Returns constraints, by number, that would split gathered values again."""
        return frozenset[int]().union(*(each.between for each in self.gathers))

    @property
    def carried_bytes(self) -> int:
        """Returns the bytes of the values that leave the loops, as they carry them."""
        return sum(map(self.bytes_of, self.exits))

    def bytes_of(self, found: LoopExit) -> int:
        """Returns the bytes of a value that leaves a loop, as it carries it."""
        shape = self.program.program.shapes[found.number] or ()
        return math.prod(shape) * (element_bits(found.element) or 0) // 8

    @property
    def contents(self) -> LoopContents:
        """Returns values that the loops read, make and replace, for `placement.check_together`."""
        return LoopContents(
            tuple(value for loop in self.loops for value in loop.copies.outside),
            tuple(number for found in self.exits for number in (found.number, *found.widened)),
            tuple((part.reads, part.values) for part in self.apart),
            tuple(node.number for node in self.gone),
        )

    def with_exits(self, changed: Callable[[LoopExit], LoopExit]) -> LoopsPlan:
        """Returns the plan with changed exits of its loops, for the same values."""
        return replace(
            self,
            loops=tuple(
                replace(loop, exits=tuple(map(changed, loop.exits))) for loop in self.loops
            ),
        )

    def summary(self) -> str:
        """Returns e.g. "2 loops of 4 chunks of 16"."""
        text = f"{pluralize(len(self.loops), 'loop')} of {self.schedule.text()}"
        return text if self.parts is None else f"{text}, on each of {self.parts.count} devices"

    @property
    def cut(self) -> str:
        """Returns e.g. "8 chunks of 1024, the last of 512, of 7680"."""
        cut = self.schedule
        last = f", the last of {cut.rest}" if cut.rest else ""
        text = f"{pluralize(cut.chunks, 'chunk')} of {cut.length}{last}, of {self.flow.size}"
        return text if self.parts is None else f"{text}, on each of {self.parts.count} devices"

    @property
    def rows(self) -> tuple[tuple[Cell, ...], ...]:
        """Returns a row for each loop, for `LOOP_COLUMNS`."""
        return tuple(
            (
                phase.operations,
                phase.share,
                tuple(map(str, loop.exits)),
                tuple(map(str, phase.ends)),
            )
            for loop, phase in zip(self.loops, self.flow.phases, strict=True)
        )


def plan_loops(
    flow: DimensionFlow,
    chunks: int,
    *,
    accumulate_in: AccumulatorRule = widened,
    remade_bytes: int | None = None,
    gathers: Collection[Gather] = (),
    by_parts: bool = True,
) -> LoopsPlan:
    """Plans the loops of a flow, over so many chunks or as few less as equal lengths make.

    Args:
      flow: the flow, through a function, another block of code, or a part of one.
      chunks: from 2 to the size of the dimension; raises ValueError for others.
      accumulate_in: the element types of accumulators.
      remade_bytes: loops compute values of light work on the program's arguments again, where that
        saves so many bytes while they run; None where they do not.
      gathers: values that are gathered before the loops, where these read them.
      by_parts: each device may run the loops by itself, where it can.

    Raises NotPossibleError where the loops cannot be written.
    """
    schedule = Schedule.of(flow.size, chunks)
    program = LoopProgram(flow, remade_bytes, [each.number for each in gathers])
    planner = _Planner(program, accumulate_in)
    loops = planner.loops()
    apart = planner.apart()
    cut = {value for loop in loops for value, _ in loop.copies.slices}
    read = {value for loop in loops for value in loop.copies.outside} - cut
    gathers = tuple(each for each in gathers if each.number in read)
    everywhere = {each.number for each in gathers if not each.placement.is_split}
    contents = [(loop.copies, loop.exits) for loop in loops]
    plan = LoopsPlan(
        program,
        schedule,
        loops,
        apart,
        planner.gone(),
        parts_of(program, contents, apart, everywhere) if by_parts else None,
        gathers,
    )
    place_loops(plan, {})
    return plan


def place_loops(plan: LoopsPlan, now: dict[ir.Value, ir.Value]) -> tuple[LoopPlace, ...]:
    """Returns the places of the loops in the current block.

    ``now`` maps values of the program to those that replaced them. Raises NotPossibleError.
    """
    program = plan.program
    values = program.program.values

    def current(number: int) -> ir.Value:
        return now.get(values[number], values[number])

    return placed(
        program.program.root.block,
        [
            LoopValues(
                frozenset(map(current, loop.copies.outside)),
                frozenset(
                    values[number]
                    for found in loop.exits
                    for number in (found.number, *found.widened)
                ),
            )
            for loop in plan.loops
        ],
        {
            walk.key(part.node.op): LoopValues(
                frozenset(map(current, part.reads)),
                frozenset(values[value] for value in part.values),
            )
            for part in plan.apart
        },
        frozenset(walk.key(node.op) for node in plan.gone),
        {
            values[result]: current(program.behind(result))
            for node in plan.gone
            for result in node.results
            if program.behind(result) != result
        },
    )


class _Planner:
    """Finds the loops' contents, the last loop first: earlier ones make what it needs."""

    def __init__(self, program: LoopProgram, accumulate_in: AccumulatorRule) -> None:
        self._program = program
        self._rule = accumulate_in
        self._sums = SumPlaces.of(program, accumulate_in)
        self._widened = {
            wide: value for value, found in self._sums.widened.items() for wide in found
        }
        self._live: set[int] = set()
        self._kept: set[int] = set()
        self._exits: dict[int, dict[int, LoopExit]] = {}
        self._waiting: list[int] = []
        self._apart = {value: part for part in parts_apart(program) for value in part.values}
        self._found: set[int] = set()
        """Phases whose exits are known: a later exit would be read before it is made."""

    def loops(self) -> tuple[PhaseLoop, ...]:
        program = self._program
        for node in program.nodes:
            if node.effects or not node.results:
                if program.phase_of(node):
                    why = "it has side effects, which a loop would repeat"
                    raise NotPossibleError(why, node.op)
                self._kept.add(node.number)
                self._waiting += node.reads()
        self._waiting += program.program.root.returned
        self._follow()
        found = []
        for phase in range(program.phases, 0, -1):
            finder = CopyFinder(program, phase, self._need, self._live.__contains__)
            exits = tuple(sorted(self._exits.get(phase, {}).values(), key=lambda e: e.number))
            self._found.add(phase)
            copies = finder.find(each.number for each in exits)
            found.append(PhaseLoop(exits, copies))
        found.reverse()
        return tuple(found)

    def apart(self) -> tuple[PartApart, ...]:
        """Returns the values that are computed before the loops, in the order of the program."""
        needed = (part for value, part in self._apart.items() if value in self._live)
        return tuple({part.node.number: part for part in needed}.values())

    def gone(self) -> tuple[Node, ...]:
        """Returns operations that nothing outside of the loops reads any more."""
        program = self._program
        return tuple(
            node
            for node in program.nodes
            if node.number not in self._kept
            and (program.phase_of(node) or self._live.isdisjoint(node.results))
        )

    def _need(self, value: int) -> None:
        self._waiting.append(value)
        self._follow()

    def _follow(self) -> None:
        while self._waiting:
            value = self._program.behind(self._waiting.pop())
            if value not in self._live:
                self._live.add(value)
                self._make_outside(value)

    def _make_outside(self, value: int) -> None:
        """Finds how a value is known outside of loops."""
        program = self._program
        node = program.maker(value)
        if node is None:
            return
        flow, phase = program.of(value), program.phase_of(node)
        if not phase or flow.given:
            self._keep(node)
        elif value in self._apart:
            self._waiting += self._apart[value].reads
        elif value in self._widened:
            self._waiting.append(self._widened[value])
        elif value in self._sums.followers:
            self._keep(node)
        elif phase in self._found:
            raise NotPossibleError(
                "this loop, or an earlier one, reads all of what it makes", node.op
            )
        else:
            found = leaving(program, value, self._rule)
            wide = self._sums.widened.get(value, ())
            self._exits.setdefault(phase, {})[value] = replace(found, widened=wide)

    def _keep(self, node: Node) -> None:
        self._kept.add(node.number)
        self._waiting += node.reads()
