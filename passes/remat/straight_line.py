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

from jax.extend.mlir import ir

from hloom.passes.analysis.graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.kinds import Kind, is_table
from hloom.passes.analysis.phases import is_rematerialized
from hloom.passes.remat.describe import describe_operation, describe_value
from hloom.passes.remat.network import Network

_MOST_ROUNDS = 4
"""How often the cut is made again with what would still lie idle kept; seldom more than once."""

_FARTHEST_HOLD = 64
"""How many cheap backward values are looked through for a gradient that is in memory anyway."""


@dataclass(frozen=True)
class Group:
    """Forward operations that are cloned together, right before the operation ``before``.

    ``leaves`` are the kept values the clones start from. They pass a barrier, together with
    ``gradient`` where there is one, whose ``gradient_readers`` take it from the barrier.
    """

    before: ir.Operation
    cloned: tuple[ir.Operation, ...]
    leaves: tuple[ir.Value, ...]
    gradient: ir.Value | None
    gradient_readers: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class BlockPlan:
    """What one block recomputes: bytes it need not keep any more, and bytes kept instead.

    ``readers`` are the backward operations that take clones, each with the values it reads.
    """

    groups: tuple[Group, ...]
    readers: tuple[tuple[ir.Operation, tuple[ir.Value, ...]], ...]
    freed_bytes: int
    added_bytes: int

    def to_json(self) -> dict[str, object]:
        return {
            "freed_bytes": self.freed_bytes,
            "added_bytes": self.added_bytes,
            "groups": [
                {
                    "before": describe_operation(group.before),
                    "recomputed_operations": len(group.cloned),
                    "starts_from": [describe_value(leaf) for leaf in group.leaves],
                    "held_by_gradient": group.gradient is not None,
                }
                for group in self.groups
            ],
            "readers": [
                describe_operation(op) | {"reads": [describe_value(value) for value in values]}
                for op, values in self.readers
            ],
        }


_NOTHING = BlockPlan((), (), 0, 0)


def plan_block(block: ir.Block, min_bytes: int) -> BlockPlan:
    """Plans one block; pure. The plan has no groups where nothing is gained.

    Values below ``min_bytes`` are kept as they are.
    """
    if is_rematerialized(block):
        return _NOTHING
    network = Network(BlockGraph.of(block), min_bytes)
    sinks = frozenset(network.sinks)
    if not network.weigh(sinks):
        return _NOTHING
    banned: frozenset[int] = frozenset()
    for _ in range(_MOST_ROUNDS):
        kept = network.cut(banned)
        schedule = _Schedule(network, kept)
        idle = schedule.idle()
        if not idle:
            break
        banned |= idle
    freed, added = network.weigh(sinks - kept), network.weigh(kept - sinks)
    if idle or added >= freed:
        return _NOTHING
    return BlockPlan(schedule.groups(), schedule.readers(), freed, added)


class _Schedule:
    """Which backward operation reads which recomputed values, and where those are cloned."""

    def __init__(self, network: Network, kept: frozenset[int]) -> None:
        self.network = network
        self.kept = kept
        self.reads: dict[int, list[int]] = {}
        """For each backward position that reads recomputed values, those values."""
        self.cloned: dict[int, list[int]] = {}
        """For a position, the forward positions cloned for it, in order."""
        self.due: dict[int, list[int]] = {}
        """For each recomputed value, where it is needed: read, or an operand of a clone."""
        for position, backward in enumerate(network.backward):
            if backward:
                self._visit(position)

    def idle(self) -> frozenset[int]:
        """Recomputed values that would lie unread for too long."""
        return frozenset(v for v, due in self.due.items() if self.network.has_long_gap(due))

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
            if self._is_recomputed(value):
                already_made = value in self.due
                self.due.setdefault(value, []).append(position)
                if already_made:
                    continue
            elif not self.network.constant[value] or is_table(graph.ops[graph.producers[value]]):
                continue
            producer = graph.producers[value]
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

    def readers(self) -> tuple[tuple[ir.Operation, tuple[ir.Value, ...]], ...]:
        graph = self.network.graph
        return tuple(
            (graph.ops[position], tuple(graph.values[value] for value in values))
            for position, values in self.reads.items()
        )

    def groups(self) -> tuple[Group, ...]:
        """What is cloned for each reader; for neighbours with one place and gradient together."""
        graph = self.network.graph
        placed: dict[int, int] = {}
        together: list[tuple[int, _Hold | None, list[int]]] = []
        for position, cloned in self.cloned.items():
            hold = None
            if self._leaves(cloned):
                hold = self._hold(position, self._earliest(cloned, placed), placed)
            before = hold.before if hold else position
            placed |= {value: before for producer in cloned for value in graph.results[producer]}
            if hold:
                placed[hold.gradient] = before
            if together and together[-1][:2] == (before, hold):
                together[-1][2].extend(cloned)
            else:
                together.append((before, hold, list(cloned)))
        return tuple(
            Group(
                before=graph.ops[before],
                cloned=tuple(graph.ops[producer] for producer in sorted(set(cloned))),
                leaves=tuple(graph.values[leaf] for leaf in self._leaves(cloned)),
                gradient=graph.values[hold.gradient] if hold else None,
                gradient_readers=tuple(graph.ops[u] for u in hold.readers) if hold else (),
            )
            for before, hold, cloned in together
        )

    def _leaves(self, cloned: list[int]) -> list[int]:
        """The kept values that cloned operations start from."""
        graph, constant = self.network.graph, self.network.constant
        operands = {operand for producer in cloned for operand in graph.operands[producer]}
        return sorted(v for v in operands if not constant[v] and v not in self.due)

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
        while stack and len(seen) < _FARTHEST_HOLD:
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
            readers = tuple(user for user in graph.users[value] if user >= before)
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
    readers: tuple[int, ...]
