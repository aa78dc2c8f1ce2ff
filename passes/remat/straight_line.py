"""What a straight-line block keeps for its backward pass, and what it computes again, and where.

The block's values are the vertices of a flow network: every value that can only be kept (an
argument, the result of a matrix product) is a source, every value that the backward pass reads is
a sink, and a cheap operation joins what it reads to what it makes. The cheapest set of values to
keep is a minimum vertex cut, weighed in bytes.

What is not kept is computed again in groups. A group stands before the first backward operation
that reads it and begins with an optimization barrier over the kept values it starts from and one
gradient, so that it can neither merge with the first computation nor start before its gradient is
there. Constants are cloned beside it and do not pass the barrier.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from jax.extend.mlir import ir

from hloom.passes.analysis.graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.kinds import Kind
from hloom.passes.analysis.mincut import minimum_vertex_cut
from hloom.passes.analysis.phases import is_backward

_SHORTEST_GAP, _LONGEST_GAP_SHARE = 64, 16
"""A recomputed value may lie unread for 64 operations of the backward pass, or a sixteenth of it
where that is longer. A value with a longer gap is kept: it would be alive for most of the backward
pass either way. This also bounds the work: nothing is recomputed twice, and a long chain of cheap
operations is not run from its start."""

_MOST_ROUNDS = 8


@dataclass(frozen=True)
class Site:
    """A backward operation that reads recomputed values, and what is cloned for it.

    ``reads`` are the values of which the operation takes the clones, made here or at an earlier
    site. ``cloned`` stands with its barrier right before the operation ``before``. ``leaves`` are
    the kept values the clones start from; they pass the barrier together with ``gradient`` where
    there is one, whose ``gradient_readers`` take it from the barrier.
    """

    op: ir.Operation
    reads: tuple[ir.Value, ...]
    cloned: tuple[ir.Operation, ...]
    before: ir.Operation
    leaves: tuple[ir.Value, ...]
    gradient: ir.Value | None
    gradient_readers: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class BlockPlan:
    """What one block recomputes, and the bytes its backward pass reads from the forward one."""

    sites: tuple[Site, ...]
    bytes_before: int
    bytes_after: int


def plan_block(block: ir.Block, min_bytes: int) -> BlockPlan:
    """Plans one block; pure. The plan has no sites where nothing is gained.

    Values below ``min_bytes`` are kept as they are.
    """
    network = _Network.of(BlockGraph.of(block), min_bytes)
    before = sum(network.weights[value] for value in network.sinks)
    if not before:
        return BlockPlan((), 0, 0)
    longest_gap = max(_SHORTEST_GAP, sum(network.backward) // _LONGEST_GAP_SHARE)
    banned: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        kept = network.cut(banned)
        schedule = _Schedule.of(network, kept)
        after = sum(network.weights[value] for value in kept)
        if after >= before:
            break
        idle = schedule.idle_longer_than(longest_gap)
        if not idle:
            return BlockPlan(schedule.sites(), before, after)
        banned |= idle
    return BlockPlan((), before, before)


@dataclass(frozen=True)
class _Network:
    """The block as a flow network."""

    graph: BlockGraph
    backward: list[bool]
    constant: list[bool]
    recomputable: list[bool]
    weights: list[int]
    sinks: list[int]

    @classmethod
    def of(cls, graph: BlockGraph, min_bytes: int) -> _Network:
        backward = [is_backward(op) for op in graph.ops]
        constant = graph.constant_derived()
        returned = set(graph.operands[-1]) if graph.ops else set()
        recomputable, weights, sinks = [], [], []
        for value, producer in enumerate(graph.producers):
            inside = producer != FROM_OUTSIDE
            forward = not inside or not backward[producer]
            recomputable.append(forward and graph.is_recomputable(value))
            size = graph.size(value)
            alive_anyway = not inside or value in returned or size < min_bytes
            weights.append(0 if alive_anyway or graph.is_small_reduction(value) else size)
            if forward and not constant[value] and any(backward[u] for u in graph.users[value]):
                sinks.append(value)
        return cls(graph, backward, constant, recomputable, weights, sinks)

    def cut(self, banned: set[int]) -> frozenset[int]:
        """The values to keep, where ``banned`` ones may not be recomputed."""
        sources: list[int] = []
        edges: list[tuple[int, int]] = []
        for value, producer in enumerate(self.graph.producers):
            if self.constant[value]:
                continue
            if self.recomputable[value] and value not in banned:
                edges += [(read, value) for read in self.graph.operands[producer]]
            else:
                sources.append(value)
        return minimum_vertex_cut(self.weights, edges, sources, self.sinks)


@dataclass(frozen=True)
class _Schedule:
    """Which backward operation reads which recomputed values, and where those are cloned."""

    network: _Network
    kept: frozenset[int]
    reads: dict[int, list[int]]
    """For each backward position that reads recomputed values, those values."""
    cloned: dict[int, list[int]]
    """For a position, the forward positions cloned right before it, in order."""
    needs: dict[int, list[int]]
    """For each recomputed value, the backward positions where it, or a clone made of it, is due."""

    @classmethod
    def of(cls, network: _Network, kept: frozenset[int]) -> _Schedule:
        schedule = cls(network, kept, {}, {}, {})
        for position, backward in enumerate(network.backward):
            if backward:
                schedule._visit(position)
        return schedule

    def _visit(self, position: int) -> None:
        graph = self.network.graph
        wanted = [value for value in graph.operands[position] if self._is_recomputed(value)]
        if not wanted:
            return
        self.reads[position] = wanted
        clones: set[int] = set()
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if self.network.constant[value]:
                producer = graph.producers[value]
            elif self._is_recomputed(value):
                already_made = value in self.needs
                self.needs.setdefault(value, []).append(position)
                if already_made:
                    continue
                producer = graph.producers[value]
            else:
                continue
            if producer not in clones:
                clones.add(producer)
                stack += graph.operands[producer]
        if clones:
            self.cloned[position] = sorted(clones)

    def _is_recomputed(self, value: int) -> bool:
        network = self.network
        return (
            network.recomputable[value] and value not in self.kept and not network.constant[value]
        )

    def idle_longer_than(self, longest_gap: int) -> set[int]:
        """Recomputed values that would lie unread for more operations than that."""
        return {
            value
            for value, due in self.needs.items()
            if any(later - earlier > longest_gap for earlier, later in pairwise(due))
        }

    def sites(self) -> tuple[Site, ...]:
        graph = self.network.graph
        placed: dict[int, int] = {}
        made = []
        for position, reads in self.reads.items():
            cloned = self.cloned.get(position, [])
            leaves = self._leaves(cloned)
            hold = self._hold(position, self._earliest(cloned, placed), placed) if leaves else None
            before = hold.before if hold else position
            placed |= {value: before for producer in cloned for value in graph.results[producer]}
            if hold:
                placed[hold.gradient] = before
            made.append(
                Site(
                    op=graph.ops[position],
                    reads=tuple(graph.values[value] for value in reads),
                    cloned=tuple(graph.ops[producer] for producer in cloned),
                    before=graph.ops[before],
                    leaves=tuple(graph.values[leaf] for leaf in leaves),
                    gradient=graph.values[hold.gradient] if hold else None,
                    gradient_readers=tuple(graph.ops[u] for u in hold.readers) if hold else (),
                )
            )
        return tuple(made)

    def _leaves(self, cloned: list[int]) -> list[int]:
        """The kept values that cloned operations start from."""
        graph, constant = self.network.graph, self.network.constant
        operands = {operand for producer in cloned for operand in graph.operands[producer]}
        return sorted(v for v in operands if not constant[v] and not self._is_recomputed(v))

    def _earliest(self, cloned: list[int], placed: dict[int, int]) -> int:
        """The first position where everything that cloned operations read is there."""
        graph = self.network.graph
        operands = {operand for producer in cloned for operand in graph.operands[producer]}
        return max((placed.get(v, graph.producers[v] + 1) for v in operands), default=0)

    def _hold(self, position: int, earliest: int, placed: dict[int, int]) -> _Hold | None:
        """The gradient that holds back what is cloned for the operation at ``position``.

        It is the youngest one that is in memory anyway: the operation's gradient operands, seen
        through cheap operations, which XLA fuses (a barrier would force their results to memory).
        """
        graph, network = self.network.graph, self.network
        found: list[int] = []
        stack, seen = list(graph.operands[position]), set[int]()
        while stack:
            value = stack.pop()
            if value in seen or not self._is_gradient(value):
                continue
            seen.add(value)
            if graph.kinds[graph.producers[value]] is Kind.CHEAP:
                stack += graph.operands[graph.producers[value]]
            else:
                found.append(value)
        for value in sorted(found, reverse=True):
            first_reader = next(u for u in graph.users[value] if network.backward[u])
            before = min(max(first_reader, earliest, placed.get(value, 0)), position)
            readers = [user for user in graph.users[value] if user >= before]
            if readers:
                return _Hold(value, before, readers)
        return None

    def _is_gradient(self, value: int) -> bool:
        graph, network = self.network.graph, self.network
        producer = graph.producers[value]
        return (
            producer != FROM_OUTSIDE
            and network.backward[producer]
            and not network.constant[value]
            and graph.size(value) > 0
        )


@dataclass(frozen=True)
class _Hold:
    """A gradient, where a barrier with it can stand, and who reads it from there on."""

    gradient: int
    before: int
    readers: list[int]
