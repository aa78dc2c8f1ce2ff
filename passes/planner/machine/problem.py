"""The abstract machine in which schedules are compared: nodes in an order, some of them run again.

A node is an operation that writes one buffer. The nodes run in the order of the program. Before
some of them, the stages, earlier nodes may run again. A buffer is in memory from the node that
writes it to the last node that reads it before it is written again; to free it costs nothing.

A block becomes a problem of the abstract machine: its kernels are the nodes.

A fused value takes no memory, so that a chain of elementwise operations is one node with its
reader. In the unmodified block XLA may fuse a value into several readers and keep all its sources
instead. Where the value is smaller, e.g. the sum in a residual connection or a mask, saving the
value itself is better: it is a node.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...analysis.memory_model.fusion import INLINED, Kernels
from ...analysis.memory_model.trace import OpTrace
from ...analysis.memory_model.tracer import kernels_of, trace_block
from ...ir.op_facts import BufferUse
from ...recompute.block.gathered import may_be_summed
from ...recompute.block.values import ForwardValues


@dataclass(frozen=True)
class MachineNode:
    """An operation.

    Attributes:
      bytes: the buffer that it writes; 0 if the buffer is in memory in any case.
      seconds: the time of running it once more.
      operands: the nodes whose buffers it reads, in ascending order.
      recomputable: whether it may run again.
      inner_bytes: memory that it takes only while it runs.
      requests: operands, each with the step from which on it has to be in memory: operations that
        are fused into a node come before it in the block, and read their operands there. Both are
        sorted; an operand may be requested several times, and is read at the node itself if it has
        no request.
    """

    bytes: int
    seconds: float = 0.0
    operands: tuple[int, ...] = ()
    recomputable: bool = True
    inner_bytes: int = 0
    requests: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SchedulingProblem:
    """Nodes in the order of the program; each reads only earlier ones.

    Before a node of ``stages`` all nodes may run again that it is computed from, each to be read by
    this node or by another one that runs again there: nothing runs again in advance.
    """

    nodes: tuple[MachineNode, ...]
    stages: frozenset[int] = field(default=frozenset())

    @cached_property
    def again(self) -> Mapping[int, tuple[int, ...]]:
        """Returns, by stage, nodes that may run again before it, in order; no stage without any.

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
        """Returns, by node, the nodes that read it, in order."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for operand in node.operands:
                users[operand].append(number)
        return tuple(map(tuple, users))


@dataclass(frozen=True)
class MachineRun:
    """A sequence of nodes, and its memory and time.

    Attributes:
      sequence: the nodes in the order in which they run.
      peak_bytes: the most memory at a time.
      seconds: the time of the nodes that run again.
    """

    sequence: tuple[int, ...]
    peak_bytes: int
    seconds: float

    def again(self) -> dict[int, tuple[int, ...]]:
        """Returns, by node of the program, the nodes that run again since the one before it."""
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
    """Raises unless nodes run once in order, and again only before a stage computed from them."""
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
    """Returns the run of the unmodified program."""
    return run(problem, range(len(problem.nodes)))


_SMALLER = 0.75
"""A value is worth saving instead of its sources if it takes at most this share of them."""

_NO_LESS = 0.98
"""A block takes less in the machine if it takes less than this share."""


class BlockMachine:
    """The problem of a block, and which of its nodes a value of the block is computed from.

    Kernels after the block's highest border are the stages; those before it may run again.
    """

    def __init__(self, forward: ForwardValues, trace: OpTrace | None = None) -> None:
        self.forward = forward
        as_it_is = Kernels(trace) if trace else kernels_of(forward.graph)
        trace = _with_saveable(trace or trace_block(forward.graph), as_it_is, forward)
        self._kernels = Kernels(trace)
        self._returned = frozenset(self._kernels.returned())
        self.holds_less = _peak_bytes(self._kernels) < _NO_LESS * _peak_bytes(as_it_is)
        """Whether the block, with such values saved, takes less in the machine than in XLA."""
        maker, buffer = self._kernels.maker, self._kernels.buffer
        self._made_from: dict[frozenset[int], list[int]] = {}
        """By nodes, the values whose buffer they write, or that follow from what they write."""
        for value, sources in enumerate(_sources(trace, self._kernels)):
            made = frozenset([maker[buffer[source]] for source in sources]) - {-1}
            self._made_from.setdefault(made, []).append(value)
        self._fused = _fused(trace, self._kernels)

    @property
    def positions(self) -> Sequence[int]:
        """Returns, by node, the position in the block of the operation that it ends with."""
        return self._kernels.positions

    @cached_property
    def problem(self) -> SchedulingProblem:
        """Returns the problem where fused operations stay in their place."""
        kernels, border = self._kernels, self.forward.borders.highest
        nodes = tuple(self._node(number) for number in range(len(kernels.positions)))
        stages = frozenset(n for n, position in enumerate(kernels.positions) if position >= border)
        return SchedulingProblem(self._with_requests(nodes, frozenset()), stages)

    @cached_property
    def sunk_problem(self) -> SchedulingProblem:
        """Returns the problem where `sinkable` operations are right before their kernel."""
        nodes = self._with_requests(self.problem.nodes, self.sinkable)
        return SchedulingProblem(nodes, self.problem.stages)

    def _with_requests(
        self, nodes: Sequence[MachineNode], sunk: frozenset[int]
    ) -> tuple[MachineNode, ...]:
        """Returns the nodes, each with its requests; those in the forward pass have none."""
        kernels, border = self._kernels, self.forward.borders.highest
        requests = _requests(kernels, border, sunk)
        return tuple(
            dataclasses.replace(node, requests=self._requested(requests[position]))
            if position >= border
            else node
            for node, position in zip(nodes, kernels.positions, strict=True)
        )

    def _node(self, number: int) -> MachineNode:
        kernels, forward, trace = self._kernels, self.forward, self._kernels.trace
        made, position = kernels.makes[number], kernels.positions[number]
        size = sum(
            trace.sizes[v] for v in made if kernels.buffer[v] == v and v not in self._returned
        )
        operands = {kernels.maker[buffer] for buffer in kernels.buffers[number]} - {-1}
        done = {position}.union(*(self._fused[value] for value in trace.reads[position]))
        results = [value for p in done for value in forward.graph.results[p]]
        return MachineNode(
            bytes=size,
            seconds=sum(forward.seconds.get(value, 0.0) for value in results),
            operands=tuple(sorted(operands)),
            recomputable=size > 0
            and position < forward.borders.highest
            and all(forward.recomputable[value] for value in made)
            and any(forward.weights[value] for value in made),
            inner_bytes=trace.inner[position],
        )

    def _requested(self, requests: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Returns the nodes that a stage reads, each with the step before which it does."""
        kernels = self._kernels
        found = {
            (kernels.maker[kernels.buffer[value]], bisect_left(kernels.positions, position))
            for value, position in requests
        }
        return tuple(sorted(each for each in found if each[0] >= 0))

    def fused_from(self, nodes: Collection[int]) -> frozenset[int]:
        """Returns the values that are fused and computed only from results of the nodes."""
        kept = frozenset(nodes)
        found = (values for made, values in self._made_from.items() if made <= kept)
        return frozenset(itertools.chain.from_iterable(found))

    @cached_property
    def sinkable(self) -> frozenset[int]:
        """Returns the values after the border that may be computed right before the kernel they are
        fused into: only from values in memory and such values. Sums over devices are left out."""
        forward, trace, graph = self.forward, self._kernels.trace, self.forward.graph
        in_memory, border = _in_memory(trace, self._kernels), forward.borders.highest
        found: set[int] = set()

        def is_there(value: int) -> bool:
            is_free = forward.constant[value] or graph.producers[value] < border
            is_made = in_memory[value] and not may_be_summed(graph, value)
            return is_free or is_made or value in found

        for position in range(border, len(trace.uses)):
            is_view = trace.uses[position] is BufferUse.VIEW
            if all(map(is_there, trace.reads[position])):
                found.update(
                    value
                    for value in trace.makes[position]
                    if forward.recomputable[value] and (is_view or not in_memory[value])
                )
        return frozenset(found)

    @cached_property
    def gates(self) -> Sequence[int]:
        """Returns values in memory that clones may wait for, in the order of their producers."""
        kernels, forward = self._kernels, self.forward
        made = {
            value
            for number, makes in enumerate(kernels.makes)
            if kernels.positions[number] >= forward.borders.highest
            for value in makes
            if forward.may_be_gate(value)
        }
        return sorted({*forward.gates, *made}, key=lambda v: (forward.graph.producers[v], v))

    def values_of(self, nodes: Iterable[int]) -> frozenset[int]:
        """Returns the values that nodes write."""
        return frozenset(value for node in nodes for value in self._kernels.makes[node])


def _peak_bytes(kernels: Kernels) -> int:
    """Returns the most bytes that are live at a time, each buffer up to its last reader."""
    freed = [0] * len(kernels.positions)
    total = most = 0
    for number, (size, users) in enumerate(zip(kernels.written_bytes, kernels.users, strict=True)):
        total += size
        most = max(most, total)
        freed[max(users, default=number)] += size
        total -= freed[number]
    return most


def _with_saveable(trace: OpTrace, kernels: Kernels, forward: ForwardValues) -> OpTrace:
    """Returns the trace, in which fused values that are worth saving are in memory."""
    graph, in_memory = forward.graph, _in_memory(trace, kernels)
    border = forward.borders.highest
    sources: list[frozenset[int]] = [frozenset()] * len(trace.sizes)
    uses = list(trace.uses)
    for position, (use, makes) in enumerate(zip(trace.uses, trace.makes, strict=True)):
        found = frozenset[int]().union(*(sources[value] for value in trace.reads[position]))
        for value in makes:
            sources[value] = found if use in INLINED else frozenset({value})
        if use not in INLINED:
            continue
        (made,) = makes
        held = sum(trace.sizes[value] for value in found)
        if (
            not in_memory[made]
            and not kernels.free[made]
            and forward.recomputable[made]
            and position < border
            and (len(graph.users[made]) > 1 or max(graph.users[made], default=-1) >= border)
            and trace.sizes[made] <= _SMALLER * held
        ):
            # Its operands are fused into it, and its result is in memory.
            uses[position] = BufferUse.REDUCTION
            in_memory[made] = True
        if in_memory[made]:
            sources[made] = frozenset({made})
    return dataclasses.replace(trace, uses=uses)


def _in_memory(trace: OpTrace, kernels: Kernels) -> list[bool]:
    return [
        kernels.maker[value] >= 0 or kernels.buffer[value] != value
        for value in range(len(trace.sizes))
    ]


def _sources(trace: OpTrace, kernels: Kernels) -> list[frozenset[int]]:
    """Returns, by value, the values in memory that hold or produce it, without inputs."""
    in_memory = _in_memory(trace, kernels)
    sources: list[frozenset[int]] = [frozenset()] * len(trace.sizes)
    for reads, makes in zip(trace.reads, trace.makes, strict=True):
        found = frozenset[int]().union(*(sources[value] for value in reads))
        for value in makes:
            sources[value] = frozenset({value}) if in_memory[value] else found
    return sources


def _requests(
    kernels: Kernels, border: int, sunk: frozenset[int]
) -> dict[int, frozenset[tuple[int, int]]]:
    """Returns, by operation in memory, the values in memory that it needs, and where they are read.

    The place of a read is the position of the first operation after the border on the path from the
    value, operations that compute ``sunk`` values left out.
    """
    trace = kernels.trace
    in_memory = _in_memory(trace, kernels)
    fused: list[frozenset[tuple[int, int]]] = [frozenset()] * len(trace.sizes)
    """The requests of values not in memory; the position is -1 for reads before the border."""
    requests: dict[int, frozenset[tuple[int, int]]] = {}
    for position, (reads, makes) in enumerate(zip(trace.reads, trace.makes, strict=True)):
        here = position if position >= border and sunk.isdisjoint(makes) else -1
        found = frozenset(
            (source, here if at < 0 else at)
            for value in reads
            for source, at in ([(value, -1)] if in_memory[value] else fused[value])
        )
        if any(in_memory[value] for value in makes):
            requests[position] = found
        for value in makes:
            fused[value] = found
    return requests


def _fused(trace: OpTrace, kernels: Kernels) -> list[frozenset[int]]:
    """Returns, by value, the operations that are computed inside of each kernel that reads it."""
    in_memory = _in_memory(trace, kernels)
    fused: list[frozenset[int]] = [frozenset()] * len(trace.sizes)
    operations = zip(trace.reads, trace.makes, strict=True)
    for position, (reads, makes) in enumerate(operations):
        inside = frozenset({position}).union(*(fused[value] for value in reads))
        for value in makes:
            fused[value] = frozenset() if in_memory[value] else inside
    return fused
