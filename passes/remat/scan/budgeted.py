"""What the scans of a block store in so many bytes, so that recomputing takes least: exactly."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.budgeted_cut import FlowNetwork, vertex_cut_within
from hloom.passes.remat.budget.pricing import Pricing
from hloom.passes.remat.scan.bodies import Frame
from hloom.passes.remat.scan.cut import Network
from hloom.passes.remat.scan.plan import BlockScans, ScanPlan


def plan_scans_within(scans: BlockScans, pricing: Pricing, cap_bytes: int) -> list[ScanPlan] | None:
    """Plans the pairs of loops of a block together: all they store takes at most ``cap_bytes``.

    Of such plans it is one of least total price, as ``pricing`` has it; exactly so in bodies of up
    to some 400 values. ``cap_bytes`` is of whole stacks, those that are kept and new ones, without
    those below ``min_bytes`` a slice. None where no plan fits.
    """
    frames = _disjoint(scans.frames)
    if not frames:
        return []
    inner = [child for frame in frames for child in frame.all() if child.may_rerun]

    @functools.cache
    def choose(rerun: frozenset[Frame]) -> _Choice | None:
        return _choose(scans, frames, rerun, pricing, cap_bytes)

    found: list[_Choice] = []
    for start in (frozenset[Frame](), frozenset(inner)):
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
        scans.plan_of(frame, scans.sites(network, kept))
        for frame, network, kept in zip(frames, cheapest.networks, cheapest.kept, strict=True)
    )
    return [plan for plan in plans if plan is not None]


def bytes_kept_at(scans: BlockScans, pricing: Pricing) -> int:
    """What plans at a price keep, in the bytes that ``plan_scans_within`` limits."""
    return sum(scans.kept_bytes(frame, pricing) for frame in _disjoint(scans.frames))


def _disjoint(frames: list[Frame]) -> list[Frame]:
    """The frames, each loop in one of them: the first."""
    chosen: list[Frame] = []
    taken: set[ir.Operation] = set()
    for frame in frames:
        loops = {frame.pair.forward.op, frame.pair.backward.op}
        if not loops & taken:
            chosen.append(frame)
            taken |= loops
    return chosen


@dataclass(frozen=True)
class _Choice:
    """What each network keeps, and the total price of the rest."""

    networks: tuple[Network, ...]
    kept: tuple[frozenset[int], ...]
    price: int


def _choose(
    scans: BlockScans,
    frames: list[Frame],
    rerun: frozenset[Frame],
    pricing: Pricing,
    cap_bytes: int,
) -> _Choice | None:
    """The best choice where these inner loops are rerun; None where nothing fits."""
    networks = [
        scans.network(frame, rerun & set(frame.all()), only_cheap=False) for frame in frames
    ]
    weights: list[int] = []
    edges: list[tuple[int, int]] = []
    sources: list[int] = []
    sinks: list[int] = []
    prices: dict[int, int] = {}
    starts: list[int] = []
    for frame, network in zip(frames, networks, strict=True):
        start, trips = len(weights), frame.pair.forward.trips
        starts.append(start)
        # What cannot be stored does not fit, whatever the limit.
        weights += [w * trips if w < network.unstorable else cap_bytes + 1 for w in network.weights]
        edges += [(start + tail, start + head) for tail, head in network.edges]
        sources += [start + vertex for vertex in network.sources]
        sinks += [start + vertex for vertex in network.sinks]
        prices |= {
            start + vertex: price * trips for vertex, price in network.prices(pricing).items()
        }
    together = FlowNetwork(weights, edges, sources, sinks, prices)
    kept = vertex_cut_within(together, cap_bytes)
    if kept is None:
        return None
    ends = [*starts[1:], len(weights)]
    return _Choice(
        networks=tuple(networks),
        kept=tuple(
            frozenset(vertex - start for vertex in kept if start <= vertex < end)
            for start, end in zip(starts, ends, strict=True)
        ),
        price=together.price_of(kept),
    )
