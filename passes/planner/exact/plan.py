"""The optimum as a plan that `remat` can write: saved values, and windows of the backward pass.

In the optimum a value may run again at one stage and be read until some later one, across others
that run again meanwhile. In a plan a value that is not saved runs again once in each window that
reads it, and windows follow one another.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from ...recompute.block.schedule import CloneSchedule
from ...recompute.block.values import Window
from .optimum import Effort, least_peak, optimum
from .problem import BlockMachine, MachineRun, SchedulingProblem, run, unmodified


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


_MOST_DECISIONS = 100
"""A block with more pairs of a stage and a node that may run again before it is not small: the root
of its integer program may take a second, and there is one for each bound."""

_EFFORT = Effort(nodes=1, gap=0.02)
"""The root of the search tree, with HiGHS's heuristics: more nodes mostly prove what it finds."""

_STEPS = 10
"""Bounds from the least peak to the peak of the block as it is."""


def optimal_schedules(machine: BlockMachine) -> tuple[CloneSchedule, ...]:
    """Plans of a small block from little memory to much, at bounds evenly spaced between; pure.

    Where the block is not small there are none. The memory that each takes is to be estimated as
    any plan's: the bounds are on the memory of the machine.
    """
    problem = machine.problem
    if not 0 < sum(map(len, problem.again.values())) <= _MOST_DECISIONS:
        return ()
    lowest, top_bytes = least_peak(problem, _EFFORT).run, unmodified(problem).peak_bytes
    if lowest is None:
        return ()
    width = top_bytes - lowest.peak_bytes
    found: dict[tuple[frozenset[int], tuple[int, ...]], CloneSchedule] = {}
    for step in range(_STEPS if width else 0):
        schedule = optimal_schedule(machine, lowest.peak_bytes + width * step // _STEPS)
        if schedule is not None:
            begins = tuple(min(window.reads) for window in schedule.windows)
            found.setdefault((schedule.kept, begins), schedule)
    return tuple(found.values())


def optimal_schedule(machine: BlockMachine, limit_bytes: int) -> CloneSchedule | None:
    """The clones by which the optimum within a bound is written, or what of it a plan can have.

    None where the block takes no more as it is, or where no such plan holds the bound.
    """
    if unmodified(machine.problem).peak_bytes <= limit_bytes:
        return None
    found = optimum(machine.problem, limit_bytes, _EFFORT).run
    return None if found is None else schedule_of(machine, found, limit_bytes)


def schedule_of(machine: BlockMachine, found: MachineRun, limit_bytes: int) -> CloneSchedule | None:
    """The plan of least added time, of those made from a sequence, that holds the bound."""
    best: CloneSchedule | None = None
    best_s = math.inf
    for schedule in _schedules(machine, found):
        planned = run(machine.problem, sequence_of_clones(machine, schedule))
        if planned.peak_bytes <= limit_bytes and planned.seconds < best_s:
            best, best_s = schedule, planned.seconds
    return best


def _schedules(machine: BlockMachine, found: MachineRun) -> Iterator[CloneSchedule]:
    """What never runs again is saved, or also what is read beyond the window it runs again in."""
    problem = machine.problem
    copies = _copies(problem, found)
    saved = frozenset(range(len(problem.nodes))) - {node for node, _, _ in copies}
    for begins in (_begins(problem, copies), list(problem.again)[:1]):
        crossing = {
            node for node, made, last in copies if any(made < begin <= last for begin in begins)
        }
        for also_saved in (frozenset[int](), frozenset(crossing)):
            yield _schedule(machine, saved | also_saved, begins)


def _schedule(machine: BlockMachine, saved: frozenset[int], begins: Sequence[int]) -> CloneSchedule:
    forward = machine.forward
    border = forward.borders.highest
    positions = [border, *(machine.positions[stage] for stage in begins[1:])]
    bounds = [*positions, len(forward.graph.ops)]
    windows = [Window(range(first, stop), range(border)) for first, stop in pairwise(bounds)]
    return CloneSchedule(forward, windows, [machine.values_of(saved)] * len(windows))


def _copies(problem: SchedulingProblem, found: MachineRun) -> list[tuple[int, int, int]]:
    """Each node that runs again, the stage before which it does, and the last one that reads it."""
    again = found.again()
    made: dict[int, int] = {}
    copies: dict[tuple[int, int], int] = {}
    for step in range(len(problem.nodes)):
        for node in (*again.get(step, ()), step):
            for operand in problem.nodes[node].operands:
                if operand in made:
                    copies[operand, made[operand]] = step
            if node != step:
                made[node] = step
                copies[node, step] = step
    return [(node, stage, last) for (node, stage), last in copies.items()]


def _begins(problem: SchedulingProblem, copies: Sequence[tuple[int, int, int]]) -> list[int]:
    """The stages at which windows begin, so that none runs a node again twice.

    Of all such windows, those across whose ends the least work is read: it has to run again.
    """
    stages = list(problem.again)
    crossing = [
        sum(problem.nodes[node].seconds for node, made, last in copies if made < stage <= last)
        for stage in stages
    ]
    made_at: dict[int, set[int]] = {}
    for node, stage, _ in copies:
        made_at.setdefault(stage, set()).add(node)
    cheapest: list[tuple[float, int]] = []
    """By end, the least work read across the ends up to there, and where the last window begins."""
    for end in range(1, len(stages) + 1):
        options: list[tuple[float, int]] = []
        made: set[int] = set()
        for begin in reversed(range(end)):
            nodes = made_at.get(stages[begin], set())
            if not made.isdisjoint(nodes):
                break
            made |= nodes
            before = cheapest[begin - 1][0] + crossing[begin] if begin else 0.0
            options.append((before, begin))
        cheapest.append(min(options))
    begins: list[int] = []
    end = len(stages)
    while end:
        end = cheapest[end - 1][1]
        begins.append(stages[end])
    return begins[::-1]
