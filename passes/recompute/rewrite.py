"""Writes plans of straight-line blocks and of loops into their module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..ir.while_rewriter import Replacements
from .block.plan import BlockPlan
from .block.rewrite import apply_block
from .scan.plan import ScanPlan
from .scan.rewrite import apply_scan, finish_scans
from .scan.waits import wait_before


def apply_plans(blocks: Iterable[BlockPlan], scans: Sequence[ScanPlan]) -> None:
    """Edits the module that the plans are of; of loops in loops the outer ones are first."""
    replaced = Replacements()
    for scan in scans:
        apply_scan(scan, replaced)
    for block_plan in blocks:
        apply_block(block_plan, replaced)
    loops = [replaced.op(loop) for scan in scans for loop in scan.backward_loops]
    finish_scans(replaced)
    wait_before(loops)
