"""Plans of the machine by windows, and their runs in it.

Such a plan has windows of the stages, and for each node that may run again the last stage for which
its first result is kept. After that the node runs again where it is read, once in a window, unless
its result in the window before is carried into this one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .problem import SchedulingProblem

ALWAYS = 1 << 30
"""A stage after all others: a node that is kept for it is kept for every window."""


@dataclass
class WindowedPlan:
    """The stages until which nodes are kept.

    Attributes:
      begins: the stages at which windows begin, in order; the first window begins at the first.
      until: by node, the last stage for which its first result is kept; the nodes that are not in
        it are always kept. It counts by whole windows, at the stages at which they begin.
      carried: nodes, each with the begin of a window that reuses their results in the window
        before.
    """

    begins: list[int]
    until: dict[int, int] = field(default_factory=dict)
    carried: set[tuple[int, int]] = field(default_factory=set)

    @property
    def key(self) -> Hashable:
        """Returns what makes the plan equal to another one."""
        return tuple(self.begins), frozenset(self.until.items()), frozenset(self.carried)

    def copy(self) -> WindowedPlan:
        return WindowedPlan(list(self.begins), dict(self.until), set(self.carried))

    def is_kept(self, node: int, stage: int) -> bool:
        """Whether the node's first result is kept for a stage, or a window that begins there."""
        return self.until.get(node, ALWAYS) >= stage

    def carried_into(self, begin: int) -> list[int]:
        """Returns the nodes whose results are carried into the window beginning there."""
        return sorted(node for node, at in self.carried if at == begin)

    def split(self, begin: int) -> None:
        """Begins a window there; nodes that were carried over its begin are carried into it."""
        number = bisect_right(self.begins, begin)
        if number < len(self.begins):
            self.carried.update((node, begin) for node in self.carried_into(self.begins[number]))
        self.begins.insert(number, begin)

    def without(self, begin: int) -> WindowedPlan:
        """Returns the plan with the window that begins there joined to the one before."""
        return WindowedPlan(
            [one for one in self.begins if one != begin],
            dict(self.until),
            {each for each in self.carried if each[1] != begin},
        )


@dataclass(frozen=True)
class WindowedRun:
    """The run of a plan in the machine.

    Attributes:
      sequence: by place, the node that runs there.
      steps: by place, the node of the program that runs there, or before which one runs again.
      reads: by place, the places that read what is written there, in order.
      memory: by place, the bytes in memory.
      seconds: the time of the nodes that run again.
    """

    sequence: list[int]
    steps: list[int]
    reads: list[list[int]]
    memory: list[int]
    seconds: float

    @cached_property
    def peak_bytes(self) -> int:
        return max(self.memory, default=0)

    @cached_property
    def again(self) -> list[int]:
        """Returns the places at which nodes run again."""
        steps = zip(self.sequence, self.steps, strict=True)
        return [place for place, (node, step) in enumerate(steps) if node != step]


class WindowedMachine:
    """Runs plans by windows in one problem; all steps from its first stage on are stages.

    Runs are cached: searches for neighbouring bounds run mostly the same plans.
    """

    def __init__(self, problem: SchedulingProblem) -> None:
        nodes = problem.nodes
        self._known: dict[Hashable, WindowedRun] = {}
        self._bytes = [node.bytes for node in nodes]
        self._inner = [node.inner_bytes for node in nodes]
        self._seconds = [node.seconds for node in nodes]
        self._operands = [node.operands for node in nodes]
        self._read = [
            sorted({*node.operands} - {o for o, _ in node.requests})
            if node.requests
            else list(node.operands)
            for node in nodes
        ]
        """By node, the nodes that it reads at its own place; `_early` has those that it requests
        before."""
        self._early: dict[int, list[tuple[int, int]]] = {}
        self._requested_at: dict[tuple[int, int], list[int]] = {}
        for number, node in enumerate(nodes):
            for operand, step in node.requests:
                if step < number:
                    self._early.setdefault(step, []).append((operand, number))
                    self._requested_at.setdefault((operand, number), []).append(step)
                else:
                    self._read[number].append(operand)
        again = {node for some in problem.again.values() for node in some}
        self._may_run_again = [node in again for node in range(len(nodes))]
        start = min(problem.stages, default=len(nodes))
        self._before = [[user for user in users if user < start] for users in problem.users[:start]]
        """By node before the first stage, its readers before that stage: no plan changes them."""

    def run(self, plan: WindowedPlan) -> WindowedRun:
        """Runs a plan in the machine."""
        key = plan.key
        if key not in self._known:
            self._known[key] = self._run(plan)
        return self._known[key]

    def _run(self, plan: WindowedPlan) -> WindowedRun:
        operands, may = self._operands, self._may_run_again
        start = len(self._before)
        sequence, steps = list(range(start)), list(range(start))
        reads = list(map(list, self._before))
        there = list(range(len(operands)))
        """By node, the place of the result that the window reads."""
        firsts: dict[int, int] = {}
        """By node that has run again for the window, the place of its first result."""
        missing: set[int] = set()
        """The nodes that have to run again where they are read."""
        waiting: dict[int, set[int]] = {}
        """By later node, the places of the results that it has requested."""
        seconds = 0.0
        following = iter([*plan.begins, ALWAYS])
        begin = next(following)
        for step in range(start, len(operands)):
            read, early = self._read[step], self._early.get(step, ())
            if step >= begin:
                while step >= begin:
                    window, begin = begin, next(following)
                carried = firsts.keys() & plan.carried_into(window)
                for node in firsts.keys() - carried:
                    there[node] = firsts.pop(node)
                missing = {node for node, last in plan.until.items() if last < window and may[node]}
                missing -= carried
            if missing and (early or not missing.isdisjoint(read)):
                found = self._again(missing, [*read, *(node for node, _ in early)])
                for node in sorted(found):
                    place = len(sequence)
                    for operand in operands[node]:
                        reads[there[operand]].append(place)
                    firsts[node], there[node] = there[node], place
                    seconds += self._seconds[node]
                    sequence.append(node)
                    steps.append(step)
                    reads.append([])
                missing -= found
            for node, reader in early:
                waiting.setdefault(reader, set()).add(there[node])
            place = there[step] = len(sequence)
            if step in waiting:
                for source in waiting.pop(step).union([there[node] for node in read]):
                    reads[source].append(place)
            else:
                for node in read:
                    reads[there[node]].append(place)
            sequence.append(step)
            steps.append(step)
            reads.append([])
        return WindowedRun(sequence, steps, reads, self._memory(sequence, reads), seconds)

    def _again(self, missing: Collection[int], wanted: Sequence[int]) -> set[int]:
        """Returns the nodes that run again so that others are in memory: those of them, and of
        their operands, that are missing."""
        stack = [node for node in wanted if node in missing]
        found = set(stack)
        while stack:
            for node in self._operands[stack.pop()]:
                if node in missing and node not in found:
                    found.add(node)
                    stack.append(node)
        return found

    def _memory(self, sequence: Sequence[int], reads: Sequence[Sequence[int]]) -> list[int]:
        sizes, inner = self._bytes, self._inner
        freed = [0] * len(sequence)
        memory: list[int] = []
        total = 0
        for place, (node, later) in enumerate(zip(sequence, reads, strict=True)):
            size = sizes[node]
            total += size
            memory.append(total + inner[node])
            freed[later[-1] if later else place] += size
            total -= freed[place]
        return memory

    def request(self, ran: WindowedRun, made: int, reader: int) -> int:
        """Returns the step before which a reader needs the result of a place."""
        node, step = ran.sequence[made], ran.steps[reader]
        requests = self._requested_at.get((node, step), ())
        if ran.sequence[reader] != step or not requests:
            return step
        return min((at for at in requests if at >= ran.steps[made]), default=step)
