"""The dimensions that a program can be cut along, the best first: most likely the batch.

Flows are found only of the dimensions that most of the matrix products have.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from hloom.passes.analysis.dimension_flow.dimensions import Dimension, dimensions_of
from hloom.passes.analysis.dimension_flow.program import FlowProgram
from hloom.passes.analysis.dimension_flow.result import DimensionFlow
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

_SHOWN = 2
"""Dimensions whose flow is found whatever it takes, where none is a candidate otherwise."""


@dataclass(frozen=True)
class DimensionCandidate:
    """A dimension, and its flow."""

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

    Where all dimensions take more than ``most_phases``, those with the largest share of products
    are there nevertheless, with all their phases: for people to see why.
    """
    signatures = Signatures(program.shapes)
    dimensions = [
        dimension
        for dimension in dimensions_of(program, signatures)[:most]
        if dimension.share >= least_share
    ]
    found = []
    for dimension in dimensions:
        with contextlib.suppress(TooManyPhasesError):
            found.append(_candidate(program, dimension, signatures, most_phases))
    if not found:
        largest = dimensions[:_SHOWN]
        found = [_candidate(program, dimension, signatures, None) for dimension in largest]
    return tuple(sorted(found, key=_rank))


def _candidate(
    program: FlowProgram, dimension: Dimension, signatures: Signatures, most_phases: int | None
) -> DimensionCandidate:
    seeds = dimension.cut_on_each_device or dimension.seeds
    flow = dimension_flow(program, seeds, signatures, most_phases=most_phases)
    return DimensionCandidate(dimension, flow)


def _rank(candidate: DimensionCandidate) -> tuple[float, int, int]:
    pieces = sum(found.flow.is_split for found in candidate.flow.exits)
    return -round(candidate.share, 6), candidate.phases, pieces
