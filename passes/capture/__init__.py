"""Let a program run as few CUDA graphs: mark what each is to hold, and clear what cuts it.

XLA forms CUDA graphs (its command buffers) of what runs one behind the other without the host. By
default it leaves loops and branches out, and everything that its scheduler puts between two calls
of the host is a graph of its own.

A capture region is a maximal run of such work in one block that is worth a graph, loops and
branches with all that is inside them: ``regions`` defines it, ``schedule`` in which order a block
runs so that regions grow. The pass puts each block in that order and marks each region. Lowering
makes compile options of the marks, for this module alone: which work XLA is to capture, and which
of its passes would spoil it. What the executable then holds is read back and told beside the plan.

Before::

    %0 = stablehlo.dot_general %x, %w
    %1 = stablehlo.reduce(%0) ...
    stablehlo.custom_call @xla_ffi_python_gpu_callback(%1)
    %2 = stablehlo.while ...

After::

    %1, %2, %3 = stablehlo.composite "hloom.capture_region" %x, %w {decomposition = @..., ...}
    stablehlo.custom_call @xla_ffi_python_gpu_callback(%3)

where %3 is %1, and waits for %2. A host callback that no work needs goes to the end of its block,
and one that needs no work to its start; callbacks with no work between them stand together. XLA
keeps no order but that of data, so that an operand of at most 1 MiB is selected by a condition of
the values to wait for, the 32 latest of them. On several devices that is done inside a manual
computation only: elsewhere reading an element might move data between devices. Before all that,
``unroll`` writes out the short loops that a callback keeps out of a graph.

Collectives are left out unless asked for: captured, they were 0.71 times as fast in one public
report, and hung at step 838 in another. Elsewhere than on CUDA there is nothing to do. Run it last:
other passes do not look into a region.

Source: the capture of CUDA graphs in TVM's Relax (rewrite_cuda_graph.cc) for saying what a region
is before looking for one; XLA's command_buffer_conversion_pass.cc for what can be in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from hloom.passes.capture.capturable import Rules
from hloom.passes.capture.outline import Outliner
from hloom.passes.capture.plan import CapturePlan, plan_module
from hloom.passes.framework.base import Pass, Target
from hloom.passes.framework.options import option
from hloom.passes.inline import Inline
from hloom.passes.ir import marks, walk
from hloom.passes.unroll import Unroll

PLATFORM = "cuda"
"""The platform, by its name in JAX, on which there are CUDA graphs."""


@dataclass(frozen=True)
class Capture(Pass):
    """Run a program as few CUDA graphs."""

    name: ClassVar[str] = "capture"
    summary: ClassVar[str] = "run the program as few CUDA graphs as its host calls allow"
    example: ClassVar[str] = "remat,capture{min_ops=20}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Unroll)
    once: ClassVar[bool] = True

    min_ops: int = option(
        5,
        doc="operations that a region has at least, constants not counted, and kernels that a "
        "graph has at least; 5 is XLA's own default for these",
        minimum=1,
    )
    loops: bool = option(
        True,
        doc="loops and branches are captured whole, as conditional nodes (CUDA 12.3 or newer); "
        "else their bodies are, each by itself",
    )
    collectives: bool = option(
        False,
        doc="exchanges between devices are captured. Public reports tell of hangs and of steps "
        "that got slower",
    )

    def plan(self, module: ir.Module, target: Target) -> CapturePlan:
        rules = Rules(loops=self.loops, collectives=self.collectives)
        if target.platform != PLATFORM or _has_regions(module):
            return CapturePlan((), (), rules, self.min_ops)
        return plan_module(module, rules, self.min_ops)

    def rewrites(self, plan: CapturePlan) -> bool:
        return plan.moved > 0

    def apply(self, plan: CapturePlan) -> None:
        first = plan.blocks[0].regions.schedule.block
        *_, module = walk.ancestors(first)
        outliner = Outliner(module, plan.rules, plan.min_ops)
        for block in plan.blocks:
            outliner.apply(block)


def _has_regions(module: ir.Module) -> bool:
    """Whether the pass has been here before."""
    return any(
        marks.mark_name(op) == marks.CAPTURE_REGION for op in walk.operations(module.operation)
    )
