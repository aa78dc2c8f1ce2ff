"""Plans a group of loops: the values that forward loops store and backward bodies recompute.

A scan's forward loop stacks every residual of its body, and the backward loop reads one slice in
each iteration. A minimum vertex cut of the forward body selects the values to store. The operations
between these and the values that the backward body reads are cloned into it. Loop invariants
and slices of the scanned inputs cost nothing. The carry can be stored like any other value. No
barrier is needed, since the two bodies are separate computations.

Where several loops read the stacks of one, or a loop that reads stacks for others, one cut selects
the stored values for all of them.

Nested scans are cut together. The stacks of an inner scan are stacked once more by the outer one,
or the whole inner forward loop is rerun in the outer backward body, whichever is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from jax.extend.mlir import ir

from ...analysis.device import DeviceView
from ...analysis.loops.counted import StackedOutput
from ...analysis.loops.pairs import LoopPair, Residual, loop_pairs
from ...analysis.mincut import Solved
from ...analysis.pricing import Pricing, Rates
from .bodies import ScanBody
from .cut import CutProblem, Shared, price_in, shared_values
from .groups import PairsIn, scan_groups
from .sites import BodySite, CloneSites

_FEW = 4
"""The number of shared values that are each tried alone. Also the most inner loops of which every
set to rerun is checked before a start of the search is skipped."""


@dataclass(frozen=True)
class Link:
    """A value that a loop's body reads from a stack of an earlier loop, and the stored value."""

    read: ir.Value
    forward: ir.Operation
    stored: ir.Value


@dataclass(frozen=True)
class PairPlan:
    """The values that a loop stores for one reader of its stacks, and those that this recomputes.

    Attributes:
      stored: the forward values that the clones start from, each with its existing stack, or None
        if it needs a new one.
      dropped: the residuals that neither the backward loop nor any other reads any more.
      sites: the clones, and their readers in the backward body.
      links: values that the forward body reads of earlier loops whose pair with this backward loop
        provides them.
      again: forward values, each with the equal one that the backward body computes by itself.
      freed_bytes, added_bytes: of whole stacks; values that several pairs share count in the first.
      inner: the plans of the pairs inside these bodies.
      rerun: whether the outer pair clones this forward loop into its backward body, instead of
        stacking its stacks.
    """

    pair: LoopPair
    stored: tuple[tuple[ir.Value, StackedOutput | None], ...]
    dropped: tuple[Residual, ...]
    sites: tuple[BodySite, ...]
    links: tuple[Link, ...]
    freed_bytes: int
    added_bytes: int
    inner: tuple[PairPlan, ...] = ()
    rerun: bool = False
    again: tuple[tuple[ir.Value, ir.Value], ...] = ()

    @property
    def runs(self) -> tuple[tuple[ir.Operation, int], ...]:
        """Returns the recomputed operations, and how often each runs in the backward loop."""
        trip_count = self.pair.backward.trip_count
        own = ((op, trip_count) for site in self.sites for op in site.cloned)
        inside = ((op, trip_count * runs) for plan in self.inner for op, runs in plan.runs)
        return (*own, *inside)


@dataclass(frozen=True)
class ScanPlan:
    """The plans of the pairs of a group of loops of one block, earlier forward loops first."""

    pairs: tuple[PairPlan, ...]

    @property
    def freed_bytes(self) -> int:
        return sum(plan.freed_bytes for plan in self.pairs)

    @property
    def added_bytes(self) -> int:
        return sum(plan.added_bytes for plan in self.pairs)

    @property
    def runs(self) -> tuple[tuple[ir.Operation, int], ...]:
        """Returns the recomputed operations, and how often each runs for each run of the block."""
        return tuple(run for plan in self.pairs for run in plan.runs)

    @property
    def block(self) -> ir.Block:
        """Returns the block of the group's loops."""
        return self.pairs[0].pair.backward.op.block

    @property
    def loops(self) -> tuple[ir.Operation, ...]:
        """Returns the outermost loops that the plan changes."""
        pairs = (plan.pair for plan in self.pairs)
        return tuple(
            dict.fromkeys(loop.op for pair in pairs for loop in (pair.forward, pair.backward))
        )

    @property
    def backward_loops(self) -> tuple[ir.Operation, ...]:
        """Returns the loops that recompute."""
        return tuple(dict.fromkeys(plan.pair.backward.op for plan in self.pairs))


_BudgetedCut = tuple[CutProblem, frozenset[int], int]
"""The saved vertices of the bodies of a block, and the price of recomputing the others."""


class BlockScans:
    """The groups of loops directly in a block, planned at one price or several.

    Results that do not depend on prices are cached.
    """

    def __init__(
        self,
        block: ir.Block,
        min_bytes: int,
        device: DeviceView | None = None,
        solved: Solved | None = None,
        pairs_in: PairsIn = loop_pairs,
    ) -> None:
        """Without a device's view sizes are those of all devices together.

        Stacks below ``min_bytes`` stay. ``solved`` has the known cuts, to which new ones are added.
        """
        self.block = block
        self.solved: Solved = {} if solved is None else solved
        groups = scan_groups(block, min_bytes, device or DeviceView(), pairs_in)
        self.groups = [tuple(group) for group in groups]
        self.bodies = [body for group in self.groups for body in group]
        self.pairs = [pair for body in self.bodies for pair in body.pairs]
        self.min_bytes = min_bytes
        self._problems: dict[tuple[tuple[ScanBody, ...], _Settings, bool], CutProblem] = {}
        self._sites: dict[tuple[CutProblem, frozenset[int]], CloneSites] = {}
        self._plans: dict[tuple[tuple[ScanBody, ...], CloneSites], ScanPlan | None] = {}
        self._cuts: dict[tuple[tuple[ScanBody, ...], Rates | None], _ScanCut] = {}
        """The cheapest cuts for one device, whose pricings differ by their rates."""

    def plan(self, pricing: Pricing | None) -> list[ScanPlan]:
        """Returns a plan for each group that saves memory; each loop is in one plan.

        With a ``pricing`` all pure work may be recomputed, at its price; without one cheap work
        only, at no price. The plan of a pair includes the pairs inside its bodies.
        """
        plans = (self.plan_of(group, self._best(group, pricing).sites) for group in self.groups)
        return [plan for plan in plans if plan is not None]

    def kept_bytes(self, pricing: Pricing | None) -> int:
        """Returns bytes of whole stacks that the best cuts save, at their weight in the cuts."""
        cuts = (self._best(group, pricing) for group in self.groups)
        return sum(cut.problem.network.weigh(cut.kept) for cut in cuts)

    def problem(
        self, bodies: tuple[ScanBody, ...], settings: _Settings, *, only_cheap: bool
    ) -> CutProblem:
        """Returns the cut problem of groups of bodies, with the decisions made before the cut."""
        key = bodies, settings, only_cheap
        if key not in self._problems:
            self._problems[key] = CutProblem(
                bodies, settings.rerun, self.min_bytes, only_cheap=only_cheap, saved=settings.saved
            )
        return self._problems[key]

    def sites(self, problem: CutProblem, kept: frozenset[int]) -> CloneSites:
        """Returns the clones that follow from a cut."""
        key = problem, kept
        if key not in self._sites:
            self._sites[key] = CloneSites(problem, kept)
        return self._sites[key]

    def plan_of(self, group: tuple[ScanBody, ...], sites: CloneSites) -> ScanPlan | None:
        """Returns the plan of a group; None if it would free no memory, or, without recomputation,
        less than ``min_bytes``."""
        key = group, sites
        if key not in self._plans:
            plan = scan_plan(group, sites)
            gained = 0 if plan is None else plan.freed_bytes - plan.added_bytes
            is_none = plan is not None and not plan.runs and gained < self.min_bytes
            self._plans[key] = plan if gained > 0 and not is_none else None
        return self._plans[key]

    def saved(self, pricing: Pricing) -> frozenset[Shared]:
        """Returns the shared values that are saved before the cheapest cuts."""
        problems = (self._best(group, pricing).problem for group in self.groups)
        return frozenset[Shared]().union(*(problem.saved for problem in problems))

    def _best(self, group: tuple[ScanBody, ...], pricing: Pricing | None) -> _ScanCut:
        key = group, None if pricing is None else pricing.rates
        if key not in self._cuts:
            self._cuts[key] = self._find_best(group, pricing)
        return self._cuts[key]

    def _find_best(self, group: tuple[ScanBody, ...], pricing: Pricing | None) -> _ScanCut:
        """Returns the cheapest cut. Inner loops are rerun, and shared values saved, one by one, if
        that makes it cheaper."""
        settings = _Settings()
        best = self._cut(group, settings, pricing)
        for one in _decisions(group) if pricing is not None else ():
            found = self._cut(group, settings | one, pricing)
            if found.is_possible and found.cost < best.cost:
                best, settings = found, settings | one
        return best

    def _cut(
        self, group: tuple[ScanBody, ...], settings: _Settings, pricing: Pricing | None
    ) -> _ScanCut:
        problem = self.problem(group, settings, only_cheap=pricing is None)
        kept = problem.cut(pricing, self.solved)
        return _ScanCut(problem, kept, self.sites(problem, kept), pricing)


@dataclass(frozen=True)
class _Settings:
    """The decisions made before bodies are cut: inner loops to rerun, and values to save."""

    rerun: frozenset[ScanBody] = frozenset()
    saved: frozenset[Shared] = frozenset()

    def __or__(self, other: _Settings) -> _Settings:
        return _Settings(self.rerun | other.rerun, self.saved | other.saved)


def _decisions(group: Sequence[ScanBody]) -> list[_Settings]:
    """Returns the possible decisions: each by itself, and all shared values together."""
    bodies = [child for body in group for child in body.all()]
    shared = shared_values(bodies)
    saved = [[one] for one in shared[:_FEW]] + ([shared] if len(shared) > 1 else [])
    inner = (_Settings(rerun=frozenset([one])) for one in bodies if one.may_rerun)
    return [*inner, *(_Settings(saved=frozenset(some)) for some in saved)]


def scan_plan(group: Sequence[ScanBody], sites: CloneSites) -> ScanPlan | None:
    """Returns the plan of a group's bodies and their inner ones; None if nothing would change."""
    plans = [
        plan
        for body in group
        for number in range(len(body.pairs))
        if (plan := _pair_plan(body, number, sites)) is not None
    ]
    return ScanPlan(tuple(plans)) if any(plan.dropped for plan in plans) else None


def _pair_plan(body: ScanBody, number: int, sites: CloneSites) -> PairPlan | None:
    """Returns the plan of a pair and its inner ones; None if nothing would change."""
    pair, written, rerun = body.pairs[number], sites.of[body][number], body in sites.problem.rerun
    inner = [plan for child in body.children if (plan := _pair_plan(child, 0, sites)) is not None]
    handed_on = [
        residual.through
        for plan in inner
        for residual in (plan.pair.residuals if plan.rerun else plan.dropped)
        if residual.through is not None
    ]
    dropped = (*written.gone, *handed_on)
    if not dropped and not rerun and not written.asked:
        return None
    changed = {plan.pair.backward.op for plan in inner}
    graph, trip_count = body.graph, body.forward.trip_count
    before = sites.of[body][:number]
    freed_before = {residual.stack.number for clones in before for residual in clones.gone}
    added_before = {leaf for clones in before for leaf in clones.leaves}
    freed = sum(
        graph.bytes_of(graph.index[residual.stored])
        for residual in dropped
        if residual.stack.number not in freed_before
    )
    # The outer loop does not stack an inner loop's stacks for others: it would be a new stack.
    there = body.residual_of if body.parent else {**body.residual_of, **body.stacked}
    new = sum(graph.bytes_of(leaf) for leaf in written.leaves - added_before if leaf not in there)
    return PairPlan(
        pair=pair,
        stored=tuple((graph.values[leaf], body.stack(leaf)) for leaf in sorted(written.leaves)),
        dropped=dropped,
        sites=tuple(
            site for site in written.sites if site.reads or site.cloned or site.op in changed
        ),
        links=tuple(
            Link(graph.values[value], first.forward.op, first.graph.values[same])
            for value, (first, same) in body.links.items()
        ),
        freed_bytes=freed * trip_count,
        added_bytes=new * trip_count
        + sum(plan.added_bytes * trip_count for plan in inner if not plan.rerun),
        inner=tuple(inner),
        rerun=rerun,
        again=tuple((graph.values[value], same) for value, same in body.again.items()),
    )


class _ScanCut:
    """The minimum cut of a problem, the clones that follow from it, and its cost."""

    def __init__(
        self, problem: CutProblem, kept: frozenset[int], sites: CloneSites, pricing: Pricing | None
    ) -> None:
        self.problem, self.kept, self.sites = problem, kept, sites
        self.is_possible = all(problem.network.weights[v] < problem.network.never for v in kept)
        self.cost = problem.network.weigh(kept) + sum(
            price_in(body, position, pricing)
            for body in problem.bodies
            for clones in sites.of[body]
            for position in clones.cloned
        )


def plan_scans_budgeted(
    scans: BlockScans, pricing: Pricing, cap_bytes: int
) -> list[ScanPlan] | None:
    """Plans the groups of loops of a block together: all that they store is within ``cap_bytes``.

    Of such plans it is one of least total price; exactly so for bodies of up to some 400 values.
    ``cap_bytes`` counts whole stacks, existing and new ones, without those below ``min_bytes``.
    None if no plan fits.
    """
    if not scans.bodies:
        return []
    inner = [child for body in scans.bodies for child in body.all() if child.may_rerun]
    chosen: dict[_Settings, _BudgetedCut | None] = {}

    def problem_of(settings: _Settings) -> CutProblem:
        return scans.problem(tuple(scans.bodies), settings, only_cheap=False)

    def least(settings: _Settings) -> float:
        """Returns a lower bound of the price of a cut: to solve it may take much longer."""
        if settings in chosen:
            known = chosen[settings]
            return math.inf if known is None else known[2]
        return problem_of(settings).least_price(pricing, cap_bytes, scans.solved)

    def choose(settings: _Settings) -> _BudgetedCut | None:
        """Returns the cheapest cut; None if none fits."""
        if settings not in chosen:
            problem = problem_of(settings)
            found = problem.cut_within(pricing, cap_bytes, scans.solved)
            chosen[settings] = None if found is None else (problem, *found)
        return chosen[settings]

    cheapest: _BudgetedCut | None = None
    saved = scans.saved(pricing)
    for start in (_Settings(), _Settings(rerun=frozenset(inner)), _Settings(saved=saved)):
        flips = (set(some) for n in range(len(inner) + 1) for some in combinations(inner, n))
        around = (replace(start, rerun=start.rerun ^ some) for some in flips)
        if cheapest and len(inner) <= _FEW and all(least(each) >= cheapest[2] for each in around):
            continue
        best = choose(start)
        for child in inner:
            other = replace(start, rerun=start.rerun ^ {child})
            tried = choose(other) if best is None or least(other) < best[2] else None
            if tried is not None and (best is None or tried[2] < best[2]):
                best, start = tried, other
        if best is not None and (cheapest is None or best[2] < cheapest[2]):
            cheapest = best
    if cheapest is None:
        return None
    sites = scans.sites(*cheapest[:2])
    plans = (scans.plan_of(group, sites) for group in scans.groups)
    return [plan for plan in plans if plan is not None]
