"""The dimensions that a program can be cut along, the best first: most likely the batch.

Flows are found only of the dimensions that most of the matrix products have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from hloom.passes.analysis.dimension_flow.dimensions import Dimension, dimensions_of
from hloom.passes.analysis.dimension_flow.program import FlowProgram
from hloom.passes.analysis.dimension_flow.result import DimensionFlow, Seed
from hloom.passes.analysis.dimension_flow.rules.table import Signatures
from hloom.passes.analysis.dimension_flow.solve import dimension_flow
from hloom.passes.analysis.dimension_flow.walker import TooManyPhasesError
from hloom.passes.framework.text import pluralize

MOST_FLOWS = 8
"""Dimensions whose flow is found; programs have few that most products share."""

LEAST_SHARE = 0.5
"""Of the products' FLOPs, below which cutting a dimension leaves most of the program whole."""

MOST_PHASES = 16
"""A dimension that takes more loops is none to cut; a normalization over the batch takes four."""

_MOST_SEEDS = 8
"""Arguments of one dimension up to which it is tried without single ones of them."""


@dataclass(frozen=True)
class DimensionCandidate:
    """A dimension, and its flow from some of its arguments."""

    dimension: Dimension
    flow: DimensionFlow

    @property
    def phases(self) -> int:
        return len(self.flow.phases)

    @property
    def share(self) -> float:
        """The share of the products' FLOPs that are in loops."""
        return self.flow.share

    def __str__(self) -> str:
        return f"{pluralize(self.phases, 'phase')}, {self.share:.1%} in loops: {self.dimension}"


def candidates(
    program: FlowProgram,
    *,
    most: int = MOST_FLOWS,
    least_share: float = LEAST_SHARE,
    most_phases: int = MOST_PHASES,
) -> tuple[DimensionCandidate, ...]:
    """Candidates: the larger the share of products in loops, and then the fewer the phases, the
    earlier; of equals the one that leaves fewer values in pieces, as parameters' gradients are
    sums over the batch.
    """
    signatures = Signatures(program.shapes)
    found = []
    for dimension in dimensions_of(program, signatures)[:most]:
        if dimension.share >= least_share:
            with contextlib.suppress(TooManyPhasesError):
                flow = _flow(program, dimension, signatures, most_phases)
                found.append(DimensionCandidate(dimension, flow))
    return tuple(sorted(found, key=_rank))


def _rank(candidate: DimensionCandidate) -> tuple[float, int, int]:
    pieces = sum(found.flow.is_split for found in candidate.flow.exits)
    return -round(candidate.share, 6), candidate.phases, pieces


def _flow(
    program: FlowProgram, dimension: Dimension, signatures: Signatures, most_phases: int
) -> DimensionFlow:
    """From all arguments, or without those from which only phases come.

    A mask over the batch whose sum divides the loss makes two phases; where the mask stays whole,
    its sum is there before the loop.
    """
    seeds = dimension.seeds
    if dimension.devices > 1:
        seeds = dimension.cut_on_each_device or seeds
    best = dimension_flow(program, seeds, signatures, most_phases=most_phases)
    if len(seeds) > _MOST_SEEDS:
        return best
    for seed in seeds:
        if len(best.phases) > 1 and len(best.seeds) > 1:
            rest: Sequence[Seed] = [other for other in best.seeds if other is not seed]
            flow = dimension_flow(program, rest, signatures, most_phases=most_phases)
            if len(flow.phases) < len(best.phases) and flow.share >= best.share - 1e-9:
                best = flow
    return best
