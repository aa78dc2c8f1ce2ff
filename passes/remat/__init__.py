"""Recompute what is cheap instead of keeping it from the forward pass for the backward pass.

A value that the backward pass reads is kept in memory from the moment the forward pass makes it.
Where it follows from other kept values by cheap work (elementwise operations, broadcasts,
conversions, transposes, slices, reductions; never a matrix product, a convolution, a collective, a
custom call, a sort, a scatter or anything with a side effect), this pass computes it again beside
its backward reader. What to keep is a minimum cut over bytes, in each straight-line block and in
the body of each ``lax.scan``.

Before::

    %0 = stablehlo.dot_general %x, %w  loc("jvp()/dot_general")
    %1 = stablehlo.tanh %0             loc("jvp()/tanh")
    ...
    %9 = stablehlo.multiply %g, %1     loc("transpose(jvp())/mul")

After::

    %0 = stablehlo.dot_general %x, %w  loc("jvp()/dot_general")
    %1 = stablehlo.tanh %0             loc("jvp()/tanh")
    ...
    %7:2 = stablehlo.optimization_barrier %0, %g
    %8 = stablehlo.tanh %7#0           loc("jvp()/hloom.remat/tanh")
    %9 = stablehlo.multiply %7#1, %8   loc("transpose(jvp())/mul")

Constants, iotas and splats that the clones need are cloned beside them and never pass a barrier:
behind one they could not fold and would be kept alive. Everything else that the clones start from
is behind the barrier, so that XLA's CSE cannot merge them with the first computation. In a scan the
forward loop stacks fewer residuals and the backward body recomputes them; the two bodies are apart,
so no barrier is needed. Where the target drops barriers too early for them to hold (XLA:CPU of
jaxlib 0.10), only scans are rewritten. The work of a user's ``jax.checkpoint`` counts as backward
work and stays.

Source: the min-cut partitioner of PyTorch's AOTAutograd (Hu et al., 2022) for what to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from hloom.passes.analysis import walk
from hloom.passes.analysis.phases import has_remat_name
from hloom.passes.base import Pass, Target
from hloom.passes.cse import Cse
from hloom.passes.free_constants import FreeConstants
from hloom.passes.inline import Inline
from hloom.passes.loop_edit import Replaced
from hloom.passes.options import Bytes, option
from hloom.passes.remat.rewrite import apply_block, erase_dead
from hloom.passes.remat.scan import ScanPlan, plan_scans
from hloom.passes.remat.scan_rewrite import apply_scan
from hloom.passes.remat.straight_line import BlockPlan, plan_block


@dataclass(frozen=True)
class RematPlan:
    """What is recomputed in each straight-line block and each pair of loops, outer ones first."""

    blocks: tuple[BlockPlan, ...]
    scans: tuple[ScanPlan, ...]

    @property
    def empty(self) -> bool:
        return not self.blocks and not self.scans

    @property
    def parts(self) -> tuple[BlockPlan | ScanPlan, ...]:
        return (*self.blocks, *self.scans)

    @property
    def freed_bytes(self) -> int:
        """Bytes of residuals that are not kept any more."""
        return sum(part.freed_bytes for part in self.parts)

    @property
    def added_bytes(self) -> int:
        """Bytes of values that are kept in their place."""
        return sum(part.added_bytes for part in self.parts)

    def summary(self) -> str:
        if self.empty:
            return "nothing to recompute"
        clones = sum(len(group.cloned) for block in self.blocks for group in block.groups)
        clones += sum(len(site.cloned) for scan in self.scans for site in scan.sites)
        return (
            f"{clones} operations recomputed, {self.freed_bytes / 2**20:.1f} MiB of residuals "
            f"not kept, {self.added_bytes / 2**20:.1f} MiB kept in their place"
        )

    def to_json(self) -> dict[str, object]:
        return {
            "freed_bytes": self.freed_bytes,
            "added_bytes": self.added_bytes,
            "blocks": [block.to_json() for block in self.blocks],
            "scans": [scan.to_json() for scan in self.scans],
        }


@dataclass(frozen=True)
class Remat(Pass):
    """Recompute cheap values in the backward pass instead of keeping them."""

    name: ClassVar[str] = "remat"
    summary: ClassVar[str] = "recompute what the backward pass needs and is cheap to have again"
    example: ClassVar[str] = "remat{min_bytes=64KiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Cse, FreeConstants)

    level: str = option(
        "cheap",
        doc="what may be recomputed: cheap work only, never a matrix product",
        choices=("cheap",),
    )
    min_bytes: Bytes = option(
        Bytes(16 * 1024),
        doc="values smaller than this are kept as they are",
        minimum=0,
    )

    def plan(self, module: ir.Module, target: Target) -> RematPlan:
        code_blocks = list(walk.code_blocks(module.operation))
        scans = [plan for block in code_blocks for plan in plan_scans(block, self.min_bytes)]
        if not target.keeps_barriers:
            return RematPlan((), tuple(scans))
        # A scan's plan rewrites the bodies of its loops, so no other plan may speak of them, nor
        # of the bodies that an earlier run rewrote.
        taken = {loop for scan in scans for loop in (scan.pair.forward.op, scan.pair.backward.op)}
        blocks = [
            plan
            for block in code_blocks
            if not any(op in taken or has_remat_name(op) for op in walk.ancestors(block))
            and (plan := plan_block(block, self.min_bytes)).groups
        ]
        return RematPlan(tuple(blocks), tuple(scans))

    def apply(self, plan: RematPlan) -> None:
        replaced = Replaced()
        for scan in plan.scans:
            apply_scan(scan, replaced)
        for block_plan in plan.blocks:
            apply_block(block_plan, replaced)
        blocks = [old.block for old in replaced.ops]
        # An old backward loop still reads the dropped stacks of its old forward loop.
        for old in reversed(replaced.ops):
            old.erase()
        for block in blocks:
            erase_dead(block)
