"""The dimensions that a program can be cut along, the best first: most likely the batch.

Flows are found only of the dimensions that most of the matrix products have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hloom.passes.analysis.dimension_flow.dimensions import Dimension, dimensions_of
from hloom.passes.analysis.dimension_flow.program import FlowProgram
from hloom.passes.analysis.dimension_flow.result import DimensionFlow, Seed
from hloom.passes.analysis.dimension_flow.rules.table import Signatures
from hloom.passes.analysis.dimension_flow.solve import dimension_flow

MOST_FLOWS = 8
"""Dimensions whose flow is found; programs have few that most products share."""

LEAST_SHARE = 0.5
"""Of the products' FLOPs, below which cutting a dimension leaves most of the program whole."""

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
        return f"{self.phases} phases, {self.share:.1%} in loops: {self.dimension}"


def candidates(
    program: FlowProgram, *, most: int = MOST_FLOWS, least_share: float = LEAST_SHARE
) -> tuple[DimensionCandidate, ...]:
    """Candidates by the share of products in loops, then by phases, then by the arguments."""
    signatures = Signatures(program.shapes)
    found = []
    for dimension in dimensions_of(program, signatures)[:most]:
        if dimension.share >= least_share:
            flow = _flow(program, dimension, signatures)
            found.append(DimensionCandidate(dimension, flow))
    return tuple(sorted(found, key=lambda each: (-round(each.share, 6), each.phases)))


def _flow(program: FlowProgram, dimension: Dimension, signatures: Signatures) -> DimensionFlow:
    """From all arguments, or without those from which only phases come.

    A mask over the batch whose sum divides the loss makes two phases; where the mask stays whole,
    its sum is there before the loop.
    """
    seeds = dimension.seeds
    if dimension.devices > 1:
        seeds = dimension.cut_on_each_device or seeds
    best = dimension_flow(program, seeds, signatures)
    if len(seeds) > _MOST_SEEDS:
        return best
    for seed in seeds:
        if len(best.phases) > 1 and len(best.seeds) > 1:
            rest: Sequence[Seed] = [other for other in best.seeds if other is not seed]
            flow = dimension_flow(program, rest, signatures)
            if len(flow.phases) < len(best.phases) and flow.share >= best.share - 1e-9:
                best = flow
    return best
