"""Saved nodes and windows as a sequence: in each window what is not saved runs again once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from ...recompute.block.schedule import CloneSchedule
from .machine import BlockMachine
from .problem import SchedulingProblem


def sequence_in_windows(
    problem: SchedulingProblem, saved: frozenset[int], window_of: Callable[[int], int | None]
) -> tuple[int, ...]:
    """The sequence of a plan; each node runs again as late as it can.

    ``window_of`` has the number of a stage's window; None where nothing runs again before it.
    """
    sequence: list[int] = []
    window: int | None = None
    made: set[int] = set()
    for node in range(len(problem.nodes)):
        number = window_of(node) if node in problem.again else None
        if number is not None:
            if number != window:
                window, made = number, set()
            again = _closure(problem, node, saved, made)
            made.update(again)
            sequence += again
        sequence.append(node)
    return tuple(sequence)


def _closure(
    problem: SchedulingProblem, stage: int, saved: frozenset[int], made: set[int]
) -> list[int]:
    """What has to run again before a stage, given what did in its window."""
    allowed = set(problem.again[stage])
    found: set[int] = set()
    stack = list(problem.nodes[stage].operands)
    while stack:
        node = stack.pop()
        if node in allowed and node not in saved and node not in made and node not in found:
            found.add(node)
            stack += problem.nodes[node].operands
    return sorted(found)


def sequence_of_clones(machine: BlockMachine, schedule: CloneSchedule) -> tuple[int, ...]:
    """A schedule of clones as a sequence of the machine: what it saves, in its windows.

    Where a saved value is fused in the machine, what it is made from is saved.
    """
    begins = sorted(min(window.reads) for window in schedule.windows)

    def window_of(node: int) -> int | None:
        return bisect_right(begins, machine.positions[node]) or None

    return sequence_in_windows(machine.problem, machine.nodes_of(schedule.kept), window_of)
