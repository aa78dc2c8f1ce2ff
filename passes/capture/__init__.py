"""Let a program run as few CUDA graphs: mark the work of each, and move what breaks it.

XLA makes CUDA graphs of work that runs without the host in between, without loops and branches.
The pass reorders each block so that such regions are large, and has branches captured, and loops
whose end the host would have to read.

Before::

    %0 = stablehlo.dot_general %x, %w
    %1 = stablehlo.reduce(%0) ...
    stablehlo.custom_call @xla_ffi_python_gpu_callback(%1)
    %2 = stablehlo.while ...

After::

    %1, %2, %3 = stablehlo.composite "hloom.capture_region" %x, %w {decomposition = @..., ...}
    stablehlo.custom_call @xla_ffi_python_gpu_callback(%3)

where %3 equals %1, and depends on %2. A host callback whose result no work needs moves to the end
of its block; one that needs no work, to the start. Run the pass last: other passes do not look
into a region.

Source: TVM's rewrite_cuda_graph.cc; XLA's command_buffer_conversion_pass.cc.
"""

# Modules, in the order in which a module of IR passes through them: `capturable` (what a graph can
# contain), `schedule` (the order of a block, and its regions), `plan`, `rewrite`. XLA keeps no
# order but that of data: to make a callback wait, `rewrite` selects an operand of at most 1 MiB by
# a condition on the (at most 32 latest) values to wait for; with several devices inside a manual
# computation only, since elsewhere reading an element might move data between devices.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..framework.base import OTHERS, Pass
from ..framework.options import option
from ..framework.target import Target
from ..inline import Inline
from ..ir import marks, walk
from ..unroll import Unroll
from .capturable import LOOPS, Rules
from .plan import CapturePlan, plan_module
from .rewrite import Outliner
from .xla_options import compile_options


@dataclass(frozen=True)
class Capture(Pass):
    """Let the program run as few CUDA graphs."""

    name: ClassVar[str] = "capture"
    summary: ClassVar[str] = "run as few CUDA graphs as the host calls allow"
    example: ClassVar[str] = "remat,capture{min_ops=20}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Unroll)
    once: ClassVar[bool] = True
    hides_operations: ClassVar[bool] = True
    compiled_by: ClassVar[str] = "hloom.compiling.graphs:compile_captured"
    not_on: ClassVar[Mapping[str, str]] = {
        "cuda": "",
        "tpu": "it has no CUDA graphs, and runs a whole program from one launch without them",
        OTHERS: "it has no CUDA graphs",
    }

    min_ops: int = option(
        5,
        doc="the least operations of a region, without constants, and the least kernels of a graph",
        minimum=1,
    )
    loops: str = option(
        "auto",
        doc="loops and branches captured whole, as conditional nodes (CUDA 12.3 or newer): auto, "
        "where the host would have to read a value for them; on, counted loops as well; off, none. "
        "The bodies of others have graphs of their own",
        choices=LOOPS,
    )
    collectives: bool = option(
        False,
        doc="exchanges between devices are captured; public reports tell of hangs and slower steps",
    )

    def plan(self, module: ir.Module, target: Target) -> CapturePlan:
        rules = Rules(loops=self.loops, collectives=self.collectives)
        if _has_regions(module):
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

    def xla_options(self, module: ir.Module, platform: str) -> Mapping[str, str | int]:
        return compile_options(module, platform)


def _has_regions(module: ir.Module) -> bool:
    """Whether the pass has run on the module before."""
    return any(True for _ in marks.marks_in(module.operation, marks.CAPTURE_REGION))
