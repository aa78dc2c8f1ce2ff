"""The dimension of a program that it is best cut along: of an ordinary training step the batch."""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.analysis.dimension_flow.dimensions import Dimension, ProgramDimensions
from hloom.passes.analysis.dimension_flow.result import DimensionFlow
from hloom.passes.analysis.dimension_flow.solve import dimension_flow
from hloom.passes.analysis.program import Program


def best_cut(module: ir.Module) -> tuple[Dimension, DimensionFlow]:
    """Of the dimensions that half of the products have the one with most of them in loops.

    Of equals it is the one of fewest loops, and then of fewest values in pieces, as gradients of
    parameters are sums over the batch.
    """
    program = Program.of(module)
    cuts = [
        (each, dimension_flow(program, each.cut_on_each_device or each.seeds))
        for each in ProgramDimensions(program).found()
        if each.share >= 0.5
    ]
    return min(cuts, key=lambda cut: _rank(cut[1]))


def _rank(flow: DimensionFlow) -> tuple[float, int, int]:
    pieces = sum(found.flow.is_split for found in flow.exits)
    return -round(flow.share, 6), len(flow.phases), pieces
