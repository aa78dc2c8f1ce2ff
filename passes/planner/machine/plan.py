"""Converts plans of the machine to clones that `remat` writes, and back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from functools import cached_property
from itertools import pairwise

from ...recompute.block.schedule import CloneSchedule
from ...recompute.block.values import ForwardValues, Window
from .eviction import Evictions
from .problem import BlockMachine, unmodified
from .windowed import WindowedPlan, WindowedRun

_WORTH_SINKING = 0.99
"""Operations are sunk where that leaves at most this share of the excess memory or added time."""

_SHORT = 200
"""In longer problems operations are sunk only where no other plan holds."""


class EvictedPlans:
    """The clones of plans by evictions in one block, cached; pure.

    There are two kinds. An operation that is fused into a kernel of the backward pass comes before
    it in the block, and reads there what the kernel reads: a plan leaves it there, or sinks it to
    the kernel.
    """

    def __init__(self, forward: ForwardValues) -> None:
        self.machine = BlockMachine(forward)
        self._in_place = Evictions(self.machine.problem)
        sunk = self.machine.sunk_problem
        is_alike = sunk == self.machine.problem
        self._sunk = self._in_place if is_alike else Evictions(sunk)
        self._is_short = len(self.machine.positions) <= _SHORT
        self._found: dict[int, CloneSchedule | None] = {}
        self._alike: dict[Hashable, CloneSchedule] = {}
        """By whether operations are sunk, and by plan: several peaks may have the same."""

    @cached_property
    def peak_bytes(self) -> int:
        """Returns the peak of the block in the machine, from which evictions start."""
        return unmodified(self.machine.problem).peak_bytes

    def at(self, limit_bytes: int) -> CloneSchedule | None:
        """Returns the evictions that hold a peak of the machine, or come nearest to it; None where
        nothing is evicted."""
        if limit_bytes not in self._found:
            self._found[limit_bytes] = self._within(limit_bytes)
        return self._found[limit_bytes]

    def run(self, schedule: CloneSchedule) -> WindowedRun:
        """Runs clones in the machine."""
        evictions = self._sunk if schedule.sinkable else self._in_place
        return evictions.machine.run(plan_of(self.machine, schedule))

    def _within(self, limit_bytes: int) -> CloneSchedule | None:
        plan = self._in_place.within(limit_bytes)
        ran = self._in_place.machine.run(plan or WindowedPlan([]))
        if ran.peak_bytes > limit_bytes or self._is_short:
            sunk = plan if self._sunk is self._in_place else self._sunk.within(limit_bytes)
            if sunk is not None and self._pays(self._sunk.machine.run(sunk), ran, limit_bytes):
                return self._written(sunk, sinks=True)
        return None if plan is None else self._written(plan, sinks=False)

    def _pays(self, sunk: WindowedRun, other: WindowedRun, limit_bytes: int) -> bool:
        if other.peak_bytes > limit_bytes:
            return max(sunk.peak_bytes, limit_bytes) <= other.peak_bytes * _WORTH_SINKING
        fits = sunk.peak_bytes <= limit_bytes
        return fits and sunk.seconds <= other.seconds * _WORTH_SINKING

    def _written(self, plan: WindowedPlan, *, sinks: bool) -> CloneSchedule:
        key = sinks, plan.key
        if key not in self._alike:
            self._alike[key] = schedule_of(self.machine, plan, sinks=sinks)
        return self._alike[key]


def schedule_of(machine: BlockMachine, plan: WindowedPlan, *, sinks: bool = False) -> CloneSchedule:
    """Returns the clones of a plan: by window, the values that it does not keep."""
    forward, nodes = machine.forward, range(len(machine.problem.nodes))
    border = forward.borders.highest
    # An operation fused into a stage is in the block between this stage and the one before.
    positions = [border, *(machine.positions[begin - 1] + 1 for begin in plan.begins[1:])]
    bounds = [*positions, len(forward.graph.ops)]
    kept = [[node for node in nodes if plan.is_kept(node, begin)] for begin in plan.begins]
    sinkable = machine.sinkable if sinks else frozenset[int]()
    fused = map(machine.fused_from, kept)
    return CloneSchedule(
        forward,
        [Window(range(first, stop), range(border)) for first, stop in pairwise(bounds)],
        [machine.values_of(some) for some in kept],
        # Clones of fused values make XLA keep the saved ones, where it would keep more by itself.
        [some & sinkable if machine.holds_less else some for some in fused],
        [gate for gate in machine.gates if gate not in sinkable],
        [machine.values_of(plan.carried_into(begin)) for begin in plan.begins],
        sinkable,
    )


def plan_of(machine: BlockMachine, schedule: CloneSchedule) -> WindowedPlan:
    """Returns the plan of any clones, as the inverse of `schedule_of`: a node runs again where a
    result is cloned.

    Where a value that is not cloned is fused in the machine, its sources are kept.
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
        plan.carried.update((node_of[value], begin) for value in window.carried)
        for placement in window.placements:
            for position in placement.cloned:
                for value in graph.results[position]:
                    if value in node_of:
                        plan.until.setdefault(node_of[value], begin - 1)
    return plan
