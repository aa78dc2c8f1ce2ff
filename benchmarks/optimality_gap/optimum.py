"""The optimum of a scheduling problem, proved or with a bound on what it may be.

The problem is written as an integer program: which nodes run again before which stage. For a stage
t and a node i that may run again before it there is one decision, whether it does. All else
follows, and is a continuous variable that is integral where the decisions are:

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

import numpy as np
from numpy.typing import NDArray

from hloom.passes.planner.machine.problem import MachineRun, SchedulingProblem, run, unmodified

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


_SCALE = 1000.0
"""The objective where all work runs once more. HiGHS's absolute tolerances are about 1e-6."""

_UNIT = 10.0
"""The unit of memory in the program, as a multiple of the bound."""

_REPAIRS = 3
"""How often the bound is lowered where HiGHS's tolerance has let a sequence exceed it."""


@dataclass(frozen=True)
class Effort:
    """How far the integer program is searched; nothing in it is a time.

    Attributes:
      nodes: the nodes of the search tree at most.
      gap: the relative gap between what was found and what is proved at which the search ends.
    """

    nodes: int = 2000
    gap: float = 1e-4


@dataclass(frozen=True)
class Optimum:
    """What the integer program gives.

    Attributes:
      run: the best sequence that was found; None where none was.
      bound: what no sequence is below: seconds, or bytes. It is infinite where it is proved that
        none holds the bound on memory.
    """

    run: MachineRun | None
    bound: float


def optimum(problem: SchedulingProblem, limit_bytes: int, effort: Effort | None = None) -> Optimum:
    """The least added time such that the peak is at most ``limit_bytes``."""
    everything = unmodified(problem)
    if everything.peak_bytes <= limit_bytes:
        return Optimum(everything, 0.0)
    program = integer_program(problem)
    if not program.again:
        return Optimum(None, math.inf)
    total_s = sum(node.seconds for node in problem.nodes) or 1.0
    costs = np.zeros(len(program.least))
    for (_, node), variable in program.again.items():
        costs[variable] = problem.nodes[node].seconds * _SCALE / total_s
    bound_s: float | None = None
    aim_bytes = limit_bytes
    for _ in range(_REPAIRS):
        values, bound = _solve(program, costs, aim_bytes, effort or Effort())
        bound_s = max(bound * total_s / _SCALE, 0.0) if bound_s is None else bound_s
        if values is None:
            break
        found = run(problem, sequence_of(problem, _decisions(program, values)))
        if found.peak_bytes <= limit_bytes:
            return Optimum(found, min(bound_s, found.seconds))
        aim_bytes -= found.peak_bytes - limit_bytes
    return Optimum(None, bound_s or 0.0)


def least_peak(problem: SchedulingProblem, effort: Effort | None = None) -> Optimum:
    """The least peak, whatever time it adds."""
    program = integer_program(problem)
    if not program.again:
        everything = unmodified(problem)
        return Optimum(everything, everything.peak_bytes)
    costs = np.zeros(len(program.least))
    values, bound = _solve(program, costs, None, effort or Effort())
    if values is None:
        return Optimum(None, bound)
    found = run(problem, sequence_of(problem, _decisions(program, values)))
    return Optimum(found, min(bound, found.peak_bytes))


def _decisions(program: IntegerProgram, values: NDArray[np.float64]) -> dict[tuple[int, int], bool]:
    return {key: bool(values[variable] > 0.5) for key, variable in program.again.items()}


def _solve(
    program: IntegerProgram, costs: NDArray[np.float64], limit_bytes: int | None, effort: Effort
) -> tuple[NDArray[np.float64] | None, float]:
    """The values of the variables, and the bound on the objective.

    Without a limit the objective is the peak: the last variable, as a share of the peak where
    everything is kept in memory.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes long to import
    from scipy.sparse import csr_matrix

    count = len(program.least)
    most = max(constant + sum(f for _, f in terms) for terms, constant in program.memory)
    # Small factors: HiGHS would print where its presolve brings a row beyond its tolerance.
    unit = _UNIT * float(limit_bytes or most) or 1.0
    rows = list(program.rows)
    for terms, constant in program.memory:
        scaled = [(variable, factor / unit) for variable, factor in terms]
        if limit_bytes is None:
            rows.append(([*scaled, (count, -1.0)], -math.inf, -constant / unit))
        elif scaled or constant > limit_bytes:
            rows.append((scaled, -math.inf, (limit_bytes - constant) / unit))
    if limit_bytes is None:
        costs = np.append(costs, _SCALE)
    width = len(costs)
    entries = [(r, v, f) for r, (terms, _, _) in enumerate(rows) for v, f in terms]
    places = [r for r, _, _ in entries], [v for _, v, _ in entries]
    matrix = csr_matrix(([f for _, _, f in entries], places), shape=(len(rows), width))
    integrality = np.zeros(width)
    integrality[list(program.again.values())] = 1
    least = np.append(program.least, np.zeros(width - count))
    found = milp(
        costs,
        integrality=integrality,
        bounds=Bounds(least, np.ones(width)),
        constraints=LinearConstraint(
            matrix, np.array([low for _, low, _ in rows]), np.array([high for _, _, high in rows])
        ),
        # With presolve HiGHS now and then prints a line of its own on the program's stdout.
        options={"node_limit": effort.nodes, "mip_rel_gap": effort.gap, "presolve": False},
    )
    factor = unit / _SCALE if limit_bytes is None else 1.0
    if found.status == 2:
        return None, math.inf
    bound = found.mip_dual_bound
    return found.x, 0.0 if bound is None else bound * factor
