"""The plan of a pair of loops: what the forward loop stores, what the backward body recomputes.

A scan's forward loop stacks every residual of its body, and the backward loop reads one slice in
each iteration. A minimum vertex cut of the forward body selects the values to store. The operations
between these and what the backward body reads are cloned into the backward body. Loop invariants
and slices of the scanned inputs cost nothing. The carry can be stored like any other value. No
barrier is needed, since the two bodies are separate computations.

Nested scans are cut together. The stacks of an inner scan are stacked once more by the outer one,
or the whole inner forward loop is rerun in the outer backward body, whichever is cheaper.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.loops.counted import StackedOutput
from hloom.passes.analysis.loops.pairs import LoopPair, Residual, loop_pairs
from hloom.passes.remat.budget.pricing import Pricing
from hloom.passes.remat.explain import describe_operation, describe_value
from hloom.passes.remat.scan.bodies import ScanBody, outermost_bodies
from hloom.passes.remat.scan.cut import CutProblem, price_in
from hloom.passes.remat.scan.sites import BodySite, CloneSites


@dataclass(frozen=True)
class ScanPlan:
    """What one pair of loops stores, and what its backward body recomputes.

    Attributes:
      stored: the forward values that the clones start from, each with its existing stack, or None
        if it needs a new one.
      dropped: the residuals whose stacks are dropped.
      sites: the clones, and their readers in the backward body.
      freed_bytes, added_bytes: of whole stacks.
      inner: the plans of the pairs inside these bodies.
      rerun: whether the outer pair clones this forward loop into its backward body, instead of
        stacking what it stacks.
    """

    pair: LoopPair
    stored: tuple[tuple[ir.Value, StackedOutput | None], ...]
    dropped: tuple[Residual, ...]
    sites: tuple[BodySite, ...]
    freed_bytes: int
    added_bytes: int
    inner: tuple[ScanPlan, ...] = ()
    rerun: bool = False

    @property
    def runs(self) -> tuple[tuple[ir.Operation, int], ...]:
        """The recomputed operations, and how often each runs for each run of the backward loop."""
        trip_count = self.pair.backward.trip_count
        own = ((op, trip_count) for site in self.sites for op in site.cloned)
        inside = ((op, trip_count * runs) for plan in self.inner for op, runs in plan.runs)
        return (*own, *inside)

    def to_json(self) -> dict[str, object]:
        described: dict[str, object] = {
            "trips": self.pair.forward.trip_count,
            "freed_bytes": self.freed_bytes,
            "added_bytes": self.added_bytes,
            "stored": [
                describe_value(value) | {"already": stack is not None}
                for value, stack in self.stored
            ],
            "not_stored": [describe_value(residual.stored) for residual in self.dropped],
            "sites": [
                {
                    "reader": describe_operation(site.op),
                    "reads": [describe_value(value) for _, value in site.reads],
                    "recomputed_operations": len(site.cloned),
                }
                for site in self.sites
            ],
        }
        if self.inner:
            described["inner"] = [plan.to_json() | {"rerun": plan.rerun} for plan in self.inner]
        return described


class BlockScans:
    """The pairs of loops directly in a block, planned at one price or several.

    Results that do not depend on prices are cached.
    """

    def __init__(self, block: ir.Block, min_bytes: int) -> None:
        self.block = block
        self.pairs = loop_pairs(block)
        self.bodies = outermost_bodies(self.pairs)
        self.min_bytes = min_bytes
        self._problems: dict[tuple[ScanBody, frozenset[ScanBody], bool], CutProblem] = {}
        self._sites: dict[tuple[CutProblem, frozenset[int]], CloneSites] = {}
        self._plans: dict[CloneSites, ScanPlan | None] = {}

    def plan(self, pricing: Pricing | None) -> list[ScanPlan]:
        """A plan for each pair from which memory is gained; each loop is in one plan."""
        plans: list[ScanPlan] = []
        taken: set[ir.Operation] = set()
        for body in self.bodies:
            loops = {body.pair.forward.op, body.pair.backward.op}
            if loops & taken:
                continue
            plan = self.plan_of(body, self._best(body, pricing).sites)
            if plan is not None:
                plans.append(plan)
                taken |= loops
        return plans

    def kept_bytes(self, body: ScanBody, pricing: Pricing | None) -> int:
        """Bytes of whole stacks that the best cut of a body saves, at their weight in the cut."""
        best = self._best(body, pricing)
        return body.pair.forward.trip_count * sum(best.problem.weights[v] for v in best.kept)

    def problem(
        self, body: ScanBody, rerun: frozenset[ScanBody], *, only_cheap: bool
    ) -> CutProblem:
        """The cut problem of an outermost body if these inner loops are rerun."""
        key = body, rerun, only_cheap
        if key not in self._problems:
            self._problems[key] = CutProblem.of(body, rerun, self.min_bytes, only_cheap=only_cheap)
        return self._problems[key]

    def sites(self, problem: CutProblem, kept: frozenset[int]) -> CloneSites:
        """The clones that follow from a cut."""
        key = problem, kept
        if key not in self._sites:
            self._sites[key] = CloneSites(problem, kept)
        return self._sites[key]

    def plan_of(self, body: ScanBody, sites: CloneSites) -> ScanPlan | None:
        """The plan of an outermost body; None if no memory would be gained."""
        if sites not in self._plans:
            plan = scan_plan(body, sites)
            gains = plan is not None and plan.added_bytes < plan.freed_bytes
            self._plans[sites] = plan if gains else None
        return self._plans[sites]

    def _best(self, body: ScanBody, pricing: Pricing | None) -> _ScanCut:
        """The cheapest cut. Inner loops are rerun, one by one, if that makes it cheaper."""
        best = self._cut(body, frozenset(), pricing)
        inner = itertools.islice(body.all(), 1, None) if pricing is not None else ()
        for child in inner:
            if child.may_rerun:
                other = self._cut(body, best.problem.rerun | {child}, pricing)
                if other.is_possible and other.cost < best.cost:
                    best = other
        return best

    def _cut(self, body: ScanBody, rerun: frozenset[ScanBody], pricing: Pricing | None) -> _ScanCut:
        problem = self.problem(body, rerun, only_cheap=pricing is None)
        kept = problem.cut(pricing)
        return _ScanCut(problem, kept, self.sites(problem, kept), pricing)


def scan_plan(body: ScanBody, sites: CloneSites) -> ScanPlan | None:
    """The plan of a body and its inner bodies; None if nothing would change."""
    written, rerun = sites.of[body], body in sites.problem.rerun
    inner = [plan for child in body.children if (plan := scan_plan(child, sites)) is not None]
    handed_on = [
        residual.through
        for plan in inner
        for residual in (plan.pair.residuals if plan.rerun else plan.dropped)
        if residual.through is not None
    ]
    dropped = (*written.gone, *handed_on)
    if not dropped and not rerun:
        return None
    changed = {plan.pair.backward.op for plan in inner}
    graph, trip_count = body.graph, body.pair.forward.trip_count
    freed = sum(graph.size(graph.index[residual.stored]) for residual in dropped) * trip_count
    # What an inner loop stacks for others is not stacked by the outer loop: it would be new.
    there = body.residual_of if body.parent else {**body.residual_of, **body.stacked}
    new = sum(graph.size(leaf) for leaf in written.leaves if leaf not in there)
    added = new * trip_count + sum(
        plan.added_bytes * trip_count for plan in inner if not plan.rerun
    )
    return ScanPlan(
        pair=body.pair,
        stored=tuple((graph.values[leaf], body.stack(leaf)) for leaf in sorted(written.leaves)),
        dropped=dropped,
        sites=tuple(site for site in written.sites if site.reads or site.op in changed),
        freed_bytes=freed,
        added_bytes=added,
        inner=tuple(inner),
        rerun=rerun,
    )


class _ScanCut:
    """The minimum cut of a problem, the clones that follow from it, and its cost."""

    def __init__(
        self, problem: CutProblem, kept: frozenset[int], sites: CloneSites, pricing: Pricing | None
    ) -> None:
        self.problem, self.kept, self.sites = problem, kept, sites
        self.is_possible = all(problem.weights[v] < problem.unstorable for v in kept)
        self.cost = sum(problem.weights[vertex] for vertex in kept) + sum(
            price_in(body, position, pricing)
            for body in problem.bodies
            for position in sites.of[body].cloned
        )


def plan_scans(block: ir.Block, min_bytes: int, pricing: Pricing | None = None) -> list[ScanPlan]:
    """Plans the pairs of loops directly in a block; each loop is in one plan.

    With a ``pricing`` all pure work may be recomputed, at its price; without one cheap work only,
    at no price. Stored values with slices below ``min_bytes`` stay. The plan of a pair includes the
    pairs inside its bodies.
    """
    return BlockScans(block, min_bytes).plan(pricing)
