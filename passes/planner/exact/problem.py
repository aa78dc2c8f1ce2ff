"""The abstract machine in which schedules are compared: nodes in an order, some of them run again.

A node is an operation that writes one buffer. The nodes run in the order of the program. Before
some of them, the stages, earlier nodes may run again. A buffer takes its bytes from the node that
writes it to the last node that reads it before it is written again; to free it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Node:
    """An operation.

    Attributes:
      bytes: the buffer that it writes; 0 if the buffer is in memory in any case.
      seconds: what it takes to run it once more.
      operands: the nodes whose buffers it reads, in ascending order.
      recomputable: whether it may run again.
      inner_bytes: memory that it takes only while it runs.
    """

    bytes: int
    seconds: float = 0.0
    operands: tuple[int, ...] = ()
    recomputable: bool = True
    inner_bytes: int = 0


@dataclass(frozen=True)
class SchedulingProblem:
    """Nodes in the order of the program; each reads only earlier ones.

    Before a node of ``stages`` all may run again that this node is computed from, each to be read
    by this node or by another one that runs again there: nothing runs again in advance.
    """

    nodes: tuple[Node, ...]
    stages: frozenset[int] = field(default=frozenset())

    @cached_property
    def again(self) -> Mapping[int, tuple[int, ...]]:
        """By stage, the nodes that may run again before it, in order; stages without one left out.

        These are the recomputable operands, and the recomputable operands of those.
        """
        found = {stage: self._ancestors(stage) for stage in sorted(self.stages)}
        return {stage: nodes for stage, nodes in found.items() if nodes}

    def _ancestors(self, stage: int) -> tuple[int, ...]:
        reached: set[int] = set()
        stack = list(self.nodes[stage].operands)
        while stack:
            node = stack.pop()
            found = self.nodes[node]
            # A buffer without bytes of its own never has to be written again.
            if node not in reached and found.recomputable and found.bytes:
                reached.add(node)
                stack += found.operands
        return tuple(sorted(reached))

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """By node, the nodes that read it, in order."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for operand in node.operands:
                users[operand].append(number)
        return tuple(map(tuple, users))


@dataclass(frozen=True)
class MachineRun:
    """A sequence of nodes, and what it takes.

    Attributes:
      sequence: the nodes in the order in which they run.
      peak_bytes: the most memory at a time.
      seconds: the time of the nodes that run again.
    """

    sequence: tuple[int, ...]
    peak_bytes: int
    seconds: float

    def again(self) -> dict[int, tuple[int, ...]]:
        """By node of the program, the nodes that run again since the one before it."""
        found: dict[int, tuple[int, ...]] = {}
        pending: list[int] = []
        following = 0
        for node in self.sequence:
            if node < following:
                pending.append(node)
                continue
            if pending:
                found[node] = tuple(pending)
            pending, following = [], node + 1
        return found


class InvalidSequenceError(ValueError):
    """A sequence that the machine does not run."""


def run(problem: SchedulingProblem, sequence: Sequence[int]) -> MachineRun:
    """Runs a sequence; raises InvalidSequenceError where the machine cannot or may not."""
    _check(problem, sequence)
    nodes = problem.nodes
    seconds = 0.0
    latest: dict[int, int] = {}
    last = list(range(len(sequence)))
    """By place in the sequence, the last place that reads what is written there."""
    for place, number in enumerate(sequence):
        for operand in nodes[number].operands:
            last[latest[operand]] = place
        if number in latest:
            seconds += nodes[number].seconds
        latest[number] = place
    freed: list[int] = [0] * (len(sequence) + 1)
    total = peak_bytes = 0
    for place, number in enumerate(sequence):
        total += nodes[number].bytes
        peak_bytes = max(peak_bytes, total + nodes[number].inner_bytes)
        freed[last[place]] += nodes[number].bytes
        total -= freed[place]
    return MachineRun(tuple(sequence), peak_bytes, seconds)


def _check(problem: SchedulingProblem, sequence: Sequence[int]) -> None:
    """Every node runs once in order, and again only before a stage that is computed from it."""
    following = 0
    pending: list[int] = []
    for number in sequence:
        if number > following or number >= len(problem.nodes):
            raise InvalidSequenceError(f"node {number} runs before node {following}")
        if number < following:
            pending.append(number)
            continue
        allowed = problem.again.get(number, ())
        read = {operand for node in (*pending, number) for operand in problem.nodes[node].operands}
        for node in pending:
            if node not in allowed or node not in read:
                raise InvalidSequenceError(f"node {node} may not run again before node {number}")
        if pending != sorted(set(pending)):
            raise InvalidSequenceError(f"nodes run again out of order before node {number}")
        pending, following = [], number + 1
    if following != len(problem.nodes) or pending:
        raise InvalidSequenceError(f"the sequence ends before node {following}")


def unmodified(problem: SchedulingProblem) -> MachineRun:
    """The program as it is."""
    return run(problem, range(len(problem.nodes)))
