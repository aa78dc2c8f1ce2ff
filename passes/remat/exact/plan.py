"""The optimum as a plan that `remat` can write: saved values, and windows of the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hloom.passes.remat.block.schedule import CloneSchedule
from hloom.passes.remat.exact.machine import BlockMachine
from hloom.passes.remat.exact.problem import Run, SchedulingProblem


def plan_of(machine: BlockMachine, optimum: Run) -> CloneSchedule:
    """What never runs again in the optimum is saved; its windows are as long as they can be."""
    problem = machine.problem
    saved = frozenset(range(len(problem.nodes))) - {
        node for nodes in optimum.again().values() for node in nodes
    }
    begins = [machine.positions[stage] for stage in _begins(problem, optimum)]
    begins[:1] = [0]
    bounds = [*begins, len(machine.forward.graph.ops)]
    windows = [range(first, stop) for first, stop in pairwise(bounds)]
    return CloneSchedule(machine.forward, windows, machine.values_of(saved))


def _begins(problem: SchedulingProblem, optimum: Run) -> Sequence[int]:
    """The stages at which windows begin: in each a node runs again once at most."""
    begins: list[int] = []
    made: set[int] = set()
    again = optimum.again()
    for stage in problem.again:
        nodes = again.get(stage, ())
        if not begins or not made.isdisjoint(nodes):
            begins.append(stage)
            made = set()
        made.update(nodes)
    return begins
