"""What a scan stores for its backward loop, and what the backward body computes again.

A scan's forward loop stacks every residual of its body; the backward loop reads them back, one
slice an iteration. The body is the segment: a minimum vertex cut of the forward body says which
values to store, and the operations between those and what the backward body reads are cloned into
it. Loop invariants and slices of the scanned inputs are there anyway; the carry can be stored like
any other value. The two bodies are separate computations, so that no barrier is needed between
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis import walk
from hloom.passes.analysis.graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.loop_pairs import Link, LoopPair, loop_pairs
from hloom.passes.analysis.loops import Stack, defining_op
from hloom.passes.analysis.mincut import minimum_vertex_cut
from hloom.passes.analysis.names import operation_name
from hloom.passes.analysis.phases import is_backward, is_rematerialized
from hloom.passes.remat.describe import describe_operation, describe_value


@dataclass(frozen=True)
class BodySite:
    """An operation of the backward body that reads residuals which are not stored as they were.

    Each of ``reads`` pairs the value it reads now with the forward value that this is. The forward
    operations in ``cloned`` are cloned right before it, in order.
    """

    op: ir.Operation
    reads: tuple[tuple[ir.Value, ir.Value], ...]
    cloned: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class ScanPlan:
    """What one pair of loops stores, and what its backward body recomputes.

    ``stored`` are the forward values that the clones start from as slices, each with the stack
    that has it today, or None where it needs a new one; ``dropped`` are the links whose stacks go.
    Bytes are of whole stacks.
    """

    pair: LoopPair
    stored: tuple[tuple[ir.Value, Stack | None], ...]
    dropped: tuple[Link, ...]
    sites: tuple[BodySite, ...]
    freed_bytes: int
    added_bytes: int

    def to_json(self) -> dict[str, object]:
        return {
            "trips": self.pair.forward.trips,
            "freed_bytes": self.freed_bytes,
            "added_bytes": self.added_bytes,
            "stored": [
                describe_value(value) | {"already": stack is not None}
                for value, stack in self.stored
            ],
            "not_stored": [describe_value(link.stored) for link in self.dropped],
            "sites": [
                {
                    "reader": describe_operation(site.op),
                    "reads": [describe_value(value) for _, value in site.reads],
                    "recomputed_operations": len(site.cloned),
                }
                for site in self.sites
            ],
        }


def plan_scans(block: ir.Block, min_bytes: int) -> list[ScanPlan]:
    """Plans the pairs of loops that stand directly in a block, each loop once; pure."""
    plans: list[ScanPlan] = []
    taken: set[ir.Operation] = set()
    for pair in loop_pairs(block):
        loops = {pair.forward.op, pair.backward.op}
        if not _is_ad(pair) or loops & taken or is_rematerialized(pair.backward.body):
            continue
        plan = _PairPlanner(pair, min_bytes).plan()
        if plan is not None:
            plans.append(plan)
            taken |= loops
    return plans


def _is_ad(pair: LoopPair) -> bool:
    """Whether the second loop is the first one's backward pass: by name, else by running back."""
    if operation_name(pair.backward.op.location):
        return is_backward(pair.backward.op) and not is_backward(pair.forward.op)
    return pair.reversed_


class _PairPlanner:
    """The forward body as a flow network, and the backward body that reads from it."""

    def __init__(self, pair: LoopPair, min_bytes: int) -> None:
        self.pair = pair
        self.min_bytes = min_bytes
        self.graph = BlockGraph.of(pair.forward.body)
        self.constant = self.graph.constant_derived()
        self.unstorable = 1 + sum(size or 0 for size in self.graph.sizes)
        self.there = [self._is_there(value) for value in range(len(self.graph.values))]
        self.linked = {self.graph.index[link.stored]: link for link in reversed(pair.links)}
        numbers = {link.stack.number for link in pair.links}
        self.stacked = {
            self.graph.index[stack.value]: stack
            for stack in reversed(pair.forward.stacks)
            if stack.number not in numbers and stack.slope == pair.slope
        }

    def plan(self) -> ScanPlan | None:
        graph = self.graph
        kept = self._cut()
        gone = [
            link
            for link in self.pair.links
            if (value := graph.index[link.stored]) not in kept
            or self.there[value]
            or self.linked[value] is not link
        ]
        if not gone:
            return None
        sites, leaves = self._sites(gone, kept)
        stored = tuple((graph.values[leaf], self._stack(leaf)) for leaf in leaves)
        trips = self.pair.forward.trips
        dropped = sum(graph.size(graph.index[link.stored]) for link in gone)
        added = sum(graph.size(leaf) for leaf in leaves if self._stack(leaf) is None)
        if added >= dropped:
            return None
        return ScanPlan(
            pair=self.pair,
            stored=stored,
            dropped=tuple(gone),
            sites=sites,
            freed_bytes=dropped * trips,
            added_bytes=added * trips,
        )

    def _stack(self, value: int) -> Stack | None:
        link = self.linked.get(value)
        return link.stack if link else self.stacked.get(value)

    def _is_there(self, value: int) -> bool:
        """Whether the backward body can have the value without storing it in each iteration."""
        forward = self.pair.forward
        if self.graph.producers[value] != FROM_OUTSIDE:
            return False
        if value >= len(forward.body.arguments):
            return True  # read straight from outside the loop
        return value == forward.counter or value in forward.invariant

    def _cut(self) -> frozenset[int]:
        graph = self.graph
        edges = [
            (read, value)
            for value, producer in enumerate(graph.producers)
            if graph.is_recomputable(value) and not self.constant[value]
            for read in graph.operands[producer]
        ]
        sources = [
            value
            for value in range(len(graph.values))
            if not graph.is_recomputable(value) and not self.constant[value]
        ]
        sinks = [value for value in self.linked if not self.constant[value]]
        weights = [self._weight(value) for value in range(len(graph.values))]
        return minimum_vertex_cut(weights, edges, sources, sinks)

    def _weight(self, value: int) -> int:
        graph, size = self.graph, self.graph.size(value)
        if self.there[value]:
            return self._weight_from_outside(value)
        if value in self.stacked or graph.is_small_reduction(value):
            return 0
        if value in self.linked and size < self.min_bytes:
            return 0
        if not isinstance(graph.values[value].type, ir.RankedTensorType) or not graph.sizes[value]:
            return self.unstorable
        return size

    def _weight_from_outside(self, value: int) -> int:
        """A share of what the backward loop keeps alive by reading a value of the outer block."""
        forward, backward = self.pair.forward, self.pair.backward
        if value == forward.counter:
            return 0
        inside = value < len(forward.body.arguments)
        outer = forward.op.operands[value] if inside else self.graph.values[value]
        if defining_op(outer) is None or any(
            not _stands_before(use.owner.operation, backward.op) for use in outer.uses
        ):
            return 0  # alive when the backward loop runs, whatever we do
        return -(-self.graph.size(value) // forward.trips)

    def _sites(
        self, gone: list[Link], kept: frozenset[int]
    ) -> tuple[tuple[BodySite, ...], list[int]]:
        """Where the backward body takes clones, and the stored values they start from."""
        body = self.pair.backward.body
        reads_by_op: dict[ir.Operation, list[tuple[ir.Value, int]]] = {}
        for link in gone:
            for read in link.reads:
                for use in read.uses:
                    op = walk.ancestor_in(body, use.owner.operation)
                    entry = (read, self.graph.index[link.stored])
                    if entry not in reads_by_op.setdefault(op, []):
                        reads_by_op[op].append(entry)
        made: set[int] = set()
        leaves: set[int] = set()
        sites = []
        for view in body.operations:
            reads = reads_by_op.get(view.operation)
            if reads is None:
                continue
            cloned = self._closure([value for _, value in reads], kept, made, leaves)
            sites.append(
                BodySite(
                    op=view.operation,
                    reads=tuple((read, self.graph.values[value]) for read, value in reads),
                    cloned=tuple(self.graph.ops[producer] for producer in cloned),
                )
            )
        return tuple(sites), sorted(leaves)

    def _closure(
        self, wanted: list[int], kept: frozenset[int], made: set[int], leaves: set[int]
    ) -> list[int]:
        """Positions of the operations to clone for the wanted values, beside those made before.

        Adds what it makes to ``made`` and the stored values it starts from to ``leaves``.
        """
        graph = self.graph
        clones: set[int] = set()
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if value in kept or not graph.is_recomputable(value):
                if not self.there[value]:
                    leaves.add(value)
            elif value not in made:
                producer = graph.producers[value]
                clones.add(producer)
                made.update(graph.results[producer])
                stack += graph.operands[producer]
        return sorted(clones)


def _stands_before(op: ir.Operation, loop: ir.Operation) -> bool:
    """Whether an operation, or the one of the loop's block that holds it, is before the loop."""
    ancestor = walk.ancestor_in(loop.block, op)
    return ancestor != loop and ancestor.is_before_in_block(loop)
