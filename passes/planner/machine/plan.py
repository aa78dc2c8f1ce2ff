"""Plans of the machine as clones that `remat` writes, and clones as what the machine runs."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import pairwise

from ...recompute.block.schedule import CloneSchedule
from ...recompute.block.values import ForwardValues, Window
from .eviction import Evictions, WindowedPlan
from .problem import BlockMachine, unmodified


class EvictedPlans:
    """The clones of plans by evictions in one block, cached; pure."""

    def __init__(self, forward: ForwardValues) -> None:
        self.machine = BlockMachine(forward)
        self._evictions = Evictions(self.machine.problem)
        self._found: dict[int, CloneSchedule | None] = {}
        self._alike: dict[tuple[tuple[int, ...], frozenset[tuple[int, int]]], CloneSchedule] = {}
        """By windows and what is evicted: several peaks may have the same."""

    @cached_property
    def peak_bytes(self) -> int:
        """The peak of the block in the machine, from which is evicted."""
        return unmodified(self.machine.problem).peak_bytes

    def at(self, limit_bytes: int) -> CloneSchedule | None:
        """What is evicted to hold a peak of the machine, or comes nearest to that; None for
        nothing."""
        if limit_bytes not in self._found:
            plan = self._evictions.within(limit_bytes)
            self._found[limit_bytes] = None if plan is None else self._written(plan)
        return self._found[limit_bytes]

    def _written(self, plan: WindowedPlan) -> CloneSchedule:
        key = tuple(plan.begins), frozenset(plan.until.items())
        if key not in self._alike:
            self._alike[key] = schedule_of(self.machine, plan)
        return self._alike[key]


def schedule_of(machine: BlockMachine, plan: WindowedPlan) -> CloneSchedule:
    """The clones of a plan: by window, what it does not keep."""
    forward, nodes = machine.forward, range(len(machine.problem.nodes))
    border = forward.borders.highest
    # What is fused into a stage stands in the block between this one and the one before.
    positions = [border, *(machine.positions[begin - 1] + 1 for begin in plan.begins[1:])]
    bounds = [*positions, len(forward.graph.ops)]
    kept = [[node for node in nodes if plan.is_kept(node, begin)] for begin in plan.begins]
    return CloneSchedule(
        forward,
        [Window(range(first, stop), range(border)) for first, stop in pairwise(bounds)],
        [machine.values_of(some) for some in kept],
        # Clones of what is fused have XLA hold what is saved, where it holds more by itself.
        [] if machine.holds_less else [machine.fused_from(some) for some in kept],
        machine.gates,
    )


def plan_of(machine: BlockMachine, schedule: CloneSchedule) -> WindowedPlan:
    """The inverse of `schedule_of`, of any clones: a node runs again where a result is cloned.

    Where a value that is not cloned is fused in the machine, what it is made from is kept.
    """
    problem, graph = machine.problem, machine.forward.graph
    node_of = {
        value: node for node in range(len(problem.nodes)) for value in machine.values_of([node])
    }
    stages = range(min(problem.again, default=0), len(problem.nodes))
    plan = WindowedPlan([])
    for window in sorted(schedule.windows, key=lambda window: min(window.reads)):
        place = bisect_left(stages, min(window.reads), key=machine.positions.__getitem__)
        begin = stages[min(place, len(stages) - 1)]
        if begin not in plan.begins:
            plan.begins.append(begin)
        for placement in window.placements:
            for position in placement.cloned:
                for value in graph.results[position]:
                    if value in node_of:
                        plan.until.setdefault(node_of[value], begin - 1)
    return plan
