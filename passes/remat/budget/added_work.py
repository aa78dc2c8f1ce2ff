"""The work that plans add: FLOPs and seconds of the recomputed operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jax.extend.mlir import ir

from ...analysis.cost import all_flops
from ...analysis.loops.counted import runs_of
from ...ir.types import TensorSizes
from ..block.plan import BlockPlan
from ..scan.plan import ScanPlan
from .pricing import Pricing


def added_work(
    blocks: Sequence[BlockPlan], scans: Sequence[ScanPlan], pricing: Pricing
) -> tuple[float, float]:
    """FLOPs and seconds of the recomputed operations."""
    again: Counter[ir.Operation] = Counter()
    for op, runs in _again(blocks, scans):
        again[op] += runs
    sizes = TensorSizes()
    flops = sum(all_flops(op, sizes) * runs for op, runs in again.items())
    return flops, sum(pricing.repeat_seconds(op) * runs for op, runs in again.items())


def _again(
    blocks: Sequence[BlockPlan], scans: Sequence[ScanPlan]
) -> Iterator[tuple[ir.Operation, int]]:
    """The recomputed operations, and how often each runs."""
    for block in blocks:
        runs = runs_of(block.groups[0].before.block) if block.groups else 0
        yield from ((op, runs) for group in block.groups for op in group.cloned)
    for scan in scans:
        runs = runs_of(scan.block)
        yield from ((op, times * runs) for op, times in scan.runs)
