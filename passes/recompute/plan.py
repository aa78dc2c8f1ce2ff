"""The plan of a module's recomputation: its contents, its making without a budget, its writing."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.autodiff import has_remat_name
from ..analysis.device import DeviceView
from ..analysis.loops.pairs import loop_pairs
from ..analysis.memory_model.targets import memory_rules
from ..framework import base
from ..framework.tables import Fact, Kind, Table
from ..framework.target import Target
from ..framework.text import pluralize, size
from ..ir import walk
from ..ir.while_rewriter import Replacements
from .block.plan import BlockPlan, plan_block
from .block.rewrite import apply_block
from .decisions import BlockDecisions, ScanDecisions
from .scan.plan import BlockScans, ScanPlan
from .scan.rewrite import apply_scan, finish_scans
from .scan.waits import wait_before
from .tables import cloned_operations, recompute_tables


@dataclass(frozen=True)
class RematPlan(base.PlanBase):
    """The plans of the straight-line blocks and of the pairs of loops, outer loops first.

    ``zeros_wait`` is whether zeros that backward loops start from wait with the loops' other
    inputs.
    """

    blocks: tuple[BlockPlan, ...] = ()
    scans: tuple[ScanPlan, ...] = ()
    zeros_wait: bool = False

    @property
    def empty(self) -> bool:
        return not self.blocks and not self.scans

    @property
    def parts(self) -> tuple[BlockPlan | ScanPlan, ...]:
        return (*self.blocks, *self.scans)

    @property
    def freed_bytes(self) -> int:
        """Returns bytes of residuals that are no longer saved."""
        return sum(part.freed_bytes for part in self.parts)

    @property
    def added_bytes(self) -> int:
        """Returns the bytes of values that are saved instead."""
        return sum(part.added_bytes for part in self.parts)

    def summary(self) -> str:
        if self.empty:
            return "nothing to recompute"
        return (
            f"{self.effect()}, {self.freed_bytes / 2**20:.1f} MiB of "
            f"residuals not kept, {self.added_bytes / 2**20:.1f} MiB kept in their place"
        )

    def effect(self) -> str:
        clones = cloned_operations(self.blocks, self.scans)
        if not clones:
            return f"{size(self.freed_bytes - self.added_bytes)} of residuals not kept"
        return f"{pluralize(clones, 'operation')} recomputed"

    def facts(self) -> tuple[Fact, ...]:
        if self.empty:
            return ()
        return (
            Fact("operations recomputed", cloned_operations(self.blocks, self.scans)),
            Fact("residuals not kept", self.freed_bytes, Kind.BYTES),
            Fact("kept in their place", self.added_bytes, Kind.BYTES),
        )

    def tables(self) -> tuple[Table, ...]:
        return recompute_tables(self.blocks, self.scans)

    def decisions(self) -> tuple[base.Decision, ...]:
        """Returns one decision for each clone, and for each other dropped stack; blocks first."""
        blocks = [
            d for n, plan in enumerate(self.blocks) for d in BlockDecisions(plan, n).decisions
        ]
        scans = [d for n, plan in enumerate(self.scans) for d in ScanDecisions(plan, n).decisions]
        return (*blocks, *scans)

    def restricted_to(self, ids: Collection[str]) -> RematPlan:
        """Returns the plan with these decisions alone."""
        blocks = (BlockDecisions(plan, n).restricted_to(ids) for n, plan in enumerate(self.blocks))
        scans = (ScanDecisions(plan, n).restricted_to(ids) for n, plan in enumerate(self.scans))
        return RematPlan(
            tuple(plan for plan in blocks if plan is not None),
            tuple(plan for plan in scans if plan is not None),
            self.zeros_wait,
        )


def plan_cheap(module: ir.Module, target: Target, min_bytes: int) -> RematPlan:
    """Plans without a budget: cheap work is recomputed where that saves memory."""
    code_blocks = list(walk.code_blocks(module.operation))
    rules = memory_rules(target)
    device = DeviceView.of(module, rules)
    given = min_bytes, device, None, functools.cache(loop_pairs)
    scans = [plan for block in code_blocks for plan in BlockScans(block, *given).plan(None)]
    if not target.keeps_barriers:
        return RematPlan((), tuple(scans), rules.makes_zeros_early)
    # A scan's plan rewrites the bodies of its loops, so no block plan may cover them, nor the
    # bodies that an earlier run rewrote.
    taken = {loop for scan in scans for loop in scan.loops}
    blocks = [
        plan
        for block in code_blocks
        if not any(op in taken or has_remat_name(op) for op in walk.ancestors(block))
        and (plan := plan_block(block, min_bytes, device)).groups
    ]
    return RematPlan(tuple(blocks), tuple(scans), rules.makes_zeros_early)


def apply_plan(plan: RematPlan) -> None:
    """Writes a plan into its module."""
    replaced = Replacements()
    for scan in plan.scans:
        apply_scan(scan, replaced)
    for block_plan in plan.blocks:
        apply_block(block_plan, replaced)
    loops = [replaced.op(loop) for scan in plan.scans for loop in scan.backward_loops]
    finish_scans(replaced)
    wait_before(loops, zeros_wait=plan.zeros_wait)
