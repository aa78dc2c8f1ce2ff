"""A scheduling problem as an integer program: which nodes run again before which stage.

For a stage t and a node i that may run again before it there is one decision, whether it does. All
else follows, and is a continuous variable that is integral where the decisions are:

- whether the buffer of i is kept from one step that reads or may write it to the next such step;
- whether it is still needed in stage t behind each node that may run again there and reads it.

At each place of each stage, the bytes of the buffers in memory are at most the bound.

Source: Checkmate (Jain et al., 2020), whose program has a variable for each pair of node and stage
and one for each buffer that is freed. Here steps at which nothing can happen to a buffer have no
variable, and no product of decisions has to be written as a sum.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from .problem import SchedulingProblem

Terms = list[tuple[int, float]]
"""A linear form: variables with their factors."""

_NEVER = -1
"""Instead of a variable: what it would stand for is 0."""


@dataclass
class IntegerProgram:
    """Variables between 0 and 1, and rows ``low <= terms <= high``.

    Attributes:
      again: by stage and node, the variable of the decision.
      rows: the constraints that do not depend on the bound on memory.
      memory: linear forms and constants in bytes, each at most the bound.
      least: by variable, its least value.
    """

    again: dict[tuple[int, int], int] = field(default_factory=dict)
    least: list[float] = field(default_factory=list)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)
    memory: list[tuple[Terms, int]] = field(default_factory=list)

    def variable(self) -> int:
        self.least.append(0.0)
        return len(self.least) - 1

    def at_most(self, smaller: Terms, larger: Terms, constant: float = 0.0) -> None:
        """Demands ``smaller <= larger + constant``."""
        terms = smaller + [(variable, -factor) for variable, factor in larger]
        self.rows.append((terms, -math.inf, constant))


def integer_program(problem: SchedulingProblem) -> IntegerProgram:
    """The program of a problem, without a bound and without an objective."""
    return _Writer(problem).write()


class _Writer:
    """Writes the variables and rows of each node, then the memory of each place."""

    def __init__(self, problem: SchedulingProblem) -> None:
        self.problem, self.program = problem, IntegerProgram()
        self.again = problem.again
        self.readers: dict[tuple[int, int], list[int]] = {}
        """By stage and node, the nodes that may run again before the stage and read the node."""
        steps: dict[int, set[int]] = {}
        for stage, nodes in self.again.items():
            for node in nodes:
                self.program.again[stage, node] = self.program.variable()
                steps.setdefault(node, set()).add(stage)
                for operand in problem.nodes[node].operands:
                    self.readers.setdefault((stage, operand), []).append(node)
                    steps.setdefault(operand, set()).add(stage)
        self.steps = {
            node: sorted({node, *problem.users[node], *stages})
            for node, stages in steps.items()
            if problem.nodes[node].bytes
        }
        """By node whose live range is not fixed, the steps at which something may happen to it."""
        self.kept = {
            node: [self.program.variable() for _ in found[1:]] for node, found in self.steps.items()
        }
        """By node, whether it is kept from each of its steps to the next one."""
        self.needed: dict[tuple[int, int], list[int]] = {}
        """By stage and node, whether it is needed at each of its readers there, and later on."""

    def write(self) -> IntegerProgram:
        for node, steps in self.steps.items():
            for place, step in enumerate(steps[1:], 1):
                self._write_step(node, step, place)
        for step in range(len(self.problem.nodes)):
            for place in (*self.again.get(step, ()), step):
                self._write_place(step, place)
        return self.program

    def _write_step(self, node: int, step: int, place: int) -> None:
        """What may happen to a node's buffer at a step: it is read, written again, or freed."""
        program, kept = self.program, self.kept[node]
        before = kept[place - 1]
        there: Terms = [(before, 1.0)]
        again = program.again.get((step, node))
        if again is not None:
            there.append((again, 1.0))
        after = kept[place] if place < len(kept) else _NEVER
        if after != _NEVER:
            program.at_most([(after, 1.0)], there)
        is_read = node in self.problem.nodes[step].operands
        if is_read:
            if again is None:
                program.least[before] = 1.0
            else:
                program.at_most([], there, -1.0)
        readers = self.readers.get((step, node), [])
        for reader in readers:
            program.at_most([(program.again[step, reader], 1.0)], there)
        if is_read:
            return
        if again is not None:
            read = [(program.again[step, reader], 1.0) for reader in readers]
            program.at_most([(again, 1.0)], read)
        needed = self.needed[step, node] = [program.variable() for _ in readers]
        for number, reader in enumerate(readers):
            later = needed[number + 1] if number + 1 < len(needed) else after
            program.at_most([(program.again[step, reader], 1.0)], [(needed[number], 1.0)])
            if later != _NEVER:
                program.at_most([(later, 1.0)], [(needed[number], 1.0)])

    def _write_place(self, step: int, place: int) -> None:
        """The bytes in memory while ``place`` runs: a node of the step, or one before it again."""
        nodes, users = self.problem.nodes, self.problem.users
        constant, inner_bytes = 0, nodes[place].inner_bytes
        terms: Terms = []
        if place == step:
            constant = inner_bytes
        elif inner_bytes:
            terms.append((self.program.again[step, place], float(inner_bytes)))
        for node in range(step + 1):
            size = nodes[node].bytes
            if not size:
                continue
            if node == step:
                constant += size if place == step else 0
            elif node not in self.steps:
                constant += size if users[node] and users[node][-1] >= step else 0
            else:
                variable = self._alive(node, step, place)
                if variable is None:
                    constant += size
                elif variable != _NEVER:
                    terms.append((variable, float(size)))
        self.program.memory.append((terms, constant))

    def _alive(self, node: int, step: int, place: int) -> int | None:
        """The variable that tells whether a buffer is in memory; None where it is in any case."""
        steps, kept = self.steps[node], self.kept[node]
        number = bisect_left(steps, step)
        if number == len(steps):
            return _NEVER
        if steps[number] != step or ((step, node) in self.program.again and place < node):
            return kept[number - 1]
        if node in self.problem.nodes[step].operands:
            return None
        later = bisect_left(self.readers.get((step, node), []), place)
        needed = self.needed[step, node]
        if later < len(needed):
            return needed[later]
        return kept[number] if number < len(kept) else _NEVER


def sequence_of(
    problem: SchedulingProblem, again: Mapping[tuple[int, int], bool]
) -> tuple[int, ...]:
    """The sequence in which nodes run again as decided, without those that nobody reads."""
    places: list[tuple[int, bool]] = []
    for step in range(len(problem.nodes)):
        places += [(node, True) for node in problem.again.get(step, ()) if again[step, node]]
        places.append((step, False))
    wanted: set[int] = set()
    kept: list[int] = []
    for node, is_again in reversed(places):
        if not is_again or node in wanted:
            kept.append(node)
            wanted.discard(node)
            wanted.update(problem.nodes[node].operands)
    return tuple(reversed(kept))
