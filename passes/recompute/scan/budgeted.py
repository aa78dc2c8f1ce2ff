"""Plans all scans of a block within a number of stored bytes, at the least price."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ...analysis.budgeted_cut import FlowNetwork, budgeted_vertex_cut
from ...analysis.pricing import Pricing
from .bodies import ScanBody
from .cut import CutProblem
from .plan import BlockScans, ScanPlan


def plan_scans_budgeted(
    scans: BlockScans, pricing: Pricing, cap_bytes: int
) -> list[ScanPlan] | None:
    """Plans the groups of loops of a block together: all that they store is within ``cap_bytes``.

    Of such plans it is one of least total price; exactly so for bodies of up to some 400 values.
    ``cap_bytes`` counts whole stacks, existing and new ones, without those with slices below
    ``min_bytes``. None if no plan fits.
    """
    if not scans.bodies:
        return []
    inner = [child for body in scans.bodies for child in body.all() if child.may_rerun]

    @functools.cache
    def choose(rerun: frozenset[ScanBody]) -> _BudgetedCut | None:
        return _choose(scans, rerun, pricing, cap_bytes)

    found: list[_BudgetedCut] = []
    for start in (frozenset[ScanBody](), frozenset(inner)):
        best = choose(start)
        for child in inner:
            other = choose(start ^ {child})
            if other is not None and (best is None or other.price < best.price):
                best, start = other, start ^ {child}
        if best is not None:
            found.append(best)
    if not found:
        return None
    cheapest = min(found, key=lambda choice: choice.price)
    sites = scans.sites(cheapest.problem, cheapest.kept)
    plans = (scans.plan_of(group, sites) for group in scans.groups)
    return [plan for plan in plans if plan is not None]


@dataclass(frozen=True)
class _BudgetedCut:
    """The saved vertices of the bodies of a block, and the price of recomputing the others."""

    problem: CutProblem
    kept: frozenset[int]
    price: int


def _choose(
    scans: BlockScans, rerun: frozenset[ScanBody], pricing: Pricing, cap_bytes: int
) -> _BudgetedCut | None:
    """The cheapest cut if these inner loops are rerun; None if none fits."""
    problem = scans.problem(tuple(scans.bodies), rerun, only_cheap=False)
    # A value that cannot be stored exceeds any cap.
    weights = [w if w < problem.unstorable else cap_bytes + 1 for w in problem.weights]
    together = FlowNetwork(
        weights, problem.edges, problem.sources, problem.sinks, problem.prices(pricing)
    )
    kept = budgeted_vertex_cut(together, cap_bytes)
    return None if kept is None else _BudgetedCut(problem, kept, together.price_of(kept))
