"""A bound under which no plan is, for graphs that are too large for the whole integer program.

The program of `hloom.passes.planner.machine` is relaxed: memory is looked at in some of the stages
alone, and between two of these a node that runs again counts once, however often it does. Every
schedule of the machine is a solution of it, so that what HiGHS proves of it holds for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from hloom.passes.planner.machine.problem import SchedulingProblem

_MOST_VARIABLES, _MOST_STAGES = 12_000, 48
"""Of the relaxed program: pairs of a node that may run again and a stage whose memory counts."""

_GAP = 2e-3


def bound(problem: SchedulingProblem, limit_bytes: int, seconds: float) -> float:
    """Seconds that every schedule within a peak adds at least; ``seconds`` are HiGHS's at most."""
    return _Relaxed(problem).bound(limit_bytes, seconds)


class _Relaxed:
    """Variables: by stage that counts, whether a node is in memory while that runs, and whether it
    runs again between that and the next."""

    def __init__(self, problem: SchedulingProblem) -> None:
        self.problem = problem
        self.again = sorted({node for nodes in problem.again.values() for node in nodes})
        self.place = {node: place for place, node in enumerate(self.again)}
        self.stages = self._stages()

    def _stages(self) -> list[int]:
        """In equal parts of the backward pass, the stage at which most is alive as it is."""
        problem, alive = self.problem, _alive(self.problem)
        first = min(problem.stages)
        every = range(first, len(problem.nodes))
        count = max(4, min(_MOST_STAGES, _MOST_VARIABLES // max(len(self.again), 1), len(every)))
        ends = np.linspace(first, len(problem.nodes), count + 1).astype(int)
        parts = (range(start, stop) for start, stop in pairwise(ends) if stop > start)
        return sorted({max(part, key=lambda step: (alive[step], -step)) for part in parts})

    def bound(self, limit_bytes: int, seconds: float) -> float:
        problem, count = self.problem, len(self.again)
        if not count:
            return 0.0
        total_s = sum(problem.nodes[node].seconds for node in self.again) or 1.0
        width = 2 * count * len(self.stages)
        costs = np.zeros(width)
        for part in range(len(self.stages)):
            costs[self._run(part, 0) : self._run(part, 0) + count] = [
                problem.nodes[node].seconds / total_s * 1000 for node in self.again
            ]
        rows = list(self._rows(limit_bytes))
        entries = [(r, v, f) for r, (terms, _) in enumerate(rows) for v, f in terms]
        places, variables, factors = (np.array(each) for each in zip(*entries, strict=True))
        matrix = coo_matrix((factors, (places, variables)), (len(rows), width)).tocsr()
        found = milp(
            costs,
            integrality=np.ones(width),
            bounds=Bounds(np.zeros(width), np.ones(width)),
            constraints=LinearConstraint(matrix, np.array([least for _, least in rows]), np.inf),
            options={"time_limit": seconds, "mip_rel_gap": _GAP},
        )
        if found.mip_dual_bound is None:
            return 0.0
        return max(float(found.mip_dual_bound) * total_s / 1000, 0.0)

    def _held(self, part: int, place: int) -> int:
        return 2 * part * len(self.again) + place

    def _run(self, part: int, place: int) -> int:
        return (2 * part + 1) * len(self.again) + place

    def _rows(self, limit_bytes: int) -> Iterator[tuple[list[tuple[int, float]], float]]:
        """Linear forms, and what each is at least."""
        nodes, place = self.problem.nodes, self.place
        bounds = [*self.stages, len(nodes)]
        for part, (stage, end) in enumerate(pairwise(bounds)):
            there = [(self._held(part, n), self._run(part, n)) for n in range(len(self.again))]
            for node in nodes[stage].operands:
                if node in place:
                    yield [(self._held(part, place[node]), 1.0)], 1.0
            read = {n for step in range(stage + 1, end) for n in nodes[step].operands}
            for node in sorted(read & place.keys()):
                yield [(variable, 1.0) for variable in there[place[node]]], 1.0
            for node in self.again:
                for operand in nodes[node].operands:
                    if operand in place:
                        terms = [(variable, 1.0) for variable in there[place[operand]]]
                        yield [*terms, (self._run(part, place[node]), -1.0)], 0.0
            if part + 1 < len(self.stages):
                for node in range(len(self.again)):
                    terms = [(variable, 1.0) for variable in there[node]]
                    yield [*terms, (self._held(part + 1, node), -1.0)], 0.0
            held = [
                (self._held(part, place[node]), -nodes[node].bytes / limit_bytes)
                for node in self.again
                if node < stage
            ]
            yield held, (self._fixed_bytes(stage) - limit_bytes) / limit_bytes

    def _fixed_bytes(self, stage: int) -> int:
        """What is in memory while a stage runs, whatever runs again."""
        nodes, users = self.problem.nodes, self.problem.users
        alive = sum(
            nodes[node].bytes
            for node in range(stage)
            if node not in self.place and users[node] and users[node][-1] >= stage
        )
        return alive + nodes[stage].bytes + nodes[stage].inner_bytes


def _alive(problem: SchedulingProblem) -> list[int]:
    """By node, the bytes in memory while it runs in the program as it is."""
    nodes, users = problem.nodes, problem.users
    change = [0] * (len(nodes) + 1)
    for number, node in enumerate(nodes):
        change[number] += node.bytes
        change[max(number, users[number][-1] if users[number] else number) + 1] -= node.bytes
    alive, total = [], 0
    for number, node in enumerate(nodes):
        total += change[number]
        alive.append(total + node.inner_bytes)
    return alive
