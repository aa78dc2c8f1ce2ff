"""Plans all scans of a block within a number of stored bytes, at the least price."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.budgeted_cut import FlowNetwork, budgeted_vertex_cut
from hloom.passes.remat.budget.pricing import Pricing
from hloom.passes.remat.scan.bodies import ScanBody
from hloom.passes.remat.scan.cut import CutProblem
from hloom.passes.remat.scan.plan import BlockScans, ScanPlan


def plan_scans_budgeted(
    scans: BlockScans, pricing: Pricing, cap_bytes: int
) -> list[ScanPlan] | None:
    """Plans the pairs of loops of a block together: all that they store is within ``cap_bytes``.

    Of such plans it is one of least total price; exactly so for bodies of up to some 400 values.
    ``cap_bytes`` counts whole stacks, existing and new ones, without those with slices below
    ``min_bytes``. None if no plan fits.
    """
    bodies = _disjoint(scans.bodies)
    if not bodies:
        return []
    inner = [child for body in bodies for child in body.all() if child.may_rerun]

    @functools.cache
    def choose(rerun: frozenset[ScanBody]) -> _BudgetedCut | None:
        return _choose(scans, bodies, rerun, pricing, cap_bytes)

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
    plans = (
        scans.plan_of(body, scans.sites(problem, kept))
        for body, problem, kept in zip(bodies, cheapest.problems, cheapest.kept, strict=True)
    )
    return [plan for plan in plans if plan is not None]


def bytes_kept_at(scans: BlockScans, pricing: Pricing) -> int:
    """The bytes that plans at this price store, as ``plan_scans_budgeted`` counts them."""
    return sum(scans.kept_bytes(body, pricing) for body in _disjoint(scans.bodies))


def _disjoint(bodies: list[ScanBody]) -> list[ScanBody]:
    """The bodies without those that share a loop with an earlier one."""
    chosen: list[ScanBody] = []
    taken: set[ir.Operation] = set()
    for body in bodies:
        loops = {body.pair.forward.op, body.pair.backward.op}
        if not loops & taken:
            chosen.append(body)
            taken |= loops
    return chosen


@dataclass(frozen=True)
class _BudgetedCut:
    """The saved vertices of each problem, and the total price of recomputing the others."""

    problems: tuple[CutProblem, ...]
    kept: tuple[frozenset[int], ...]
    price: int


def _choose(
    scans: BlockScans,
    bodies: list[ScanBody],
    rerun: frozenset[ScanBody],
    pricing: Pricing,
    cap_bytes: int,
) -> _BudgetedCut | None:
    """The cheapest cut if these inner loops are rerun; None if none fits."""
    problems = [scans.problem(body, rerun & set(body.all()), only_cheap=False) for body in bodies]
    weights: list[int] = []
    edges: list[tuple[int, int]] = []
    sources: list[int] = []
    sinks: list[int] = []
    prices: dict[int, int] = {}
    starts: list[int] = []
    for body, problem in zip(bodies, problems, strict=True):
        start, trip_count = len(weights), body.pair.forward.trip_count
        starts.append(start)
        # A value that cannot be stored exceeds any cap.
        weights += [
            w * trip_count if w < problem.unstorable else cap_bytes + 1 for w in problem.weights
        ]
        edges += [(start + tail, start + head) for tail, head in problem.edges]
        sources += [start + vertex for vertex in problem.sources]
        sinks += [start + vertex for vertex in problem.sinks]
        prices |= {
            start + vertex: price * trip_count for vertex, price in problem.prices(pricing).items()
        }
    together = FlowNetwork(weights, edges, sources, sinks, prices)
    kept = budgeted_vertex_cut(together, cap_bytes)
    if kept is None:
        return None
    ends = [*starts[1:], len(weights)]
    return _BudgetedCut(
        problems=tuple(problems),
        kept=tuple(
            frozenset(vertex - start for vertex in kept if start <= vertex < end)
            for start, end in zip(starts, ends, strict=True)
        ),
        price=together.price_of(kept),
    )
