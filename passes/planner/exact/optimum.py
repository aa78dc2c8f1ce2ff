"""The optimum of a scheduling problem, proved or with a bound on what it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .problem import MachineRun, SchedulingProblem, run, unmodified
from .program import IntegerProgram, integer_program, sequence_of

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
