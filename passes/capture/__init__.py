"""Let a program run as few CUDA graphs: mark the work of each, and move what breaks it.

XLA makes CUDA graphs (its command buffers) of work that runs without the host in between. By
default it leaves loops and branches out, and the work between two host calls is one graph.

A capture region is a maximal run of such work in one block that is large enough for a graph,
including branches, and loops whose end the host would have to read, as a whole. Counted loops need
no host between iterations; their bodies have regions. The pass reorders each block so that regions
are large, and marks each region. Lowering turns the marks into compile options of this module:
which work XLA is to capture, and which of its passes would prevent that. The graphs of the
executable are read back and recorded with the plan.

The package, in the order in which a module passes through it: ``capturable`` (which operations a
graph can contain), ``schedule`` (the order of a block, and its regions), ``plan``, ``rewrite``,
which also makes host calls wait.

Before::

    %0 = stablehlo.dot_general %x, %w
    %1 = stablehlo.reduce(%0) ...
    stablehlo.custom_call @xla_ffi_python_gpu_callback(%1)
    %2 = stablehlo.while ...

After::

    %1, %2, %3 = stablehlo.composite "hloom.capture_region" %x, %w {decomposition = @..., ...}
    stablehlo.custom_call @xla_ffi_python_gpu_callback(%3)

where %3 equals %1, and depends on %2. A host callback whose result no work needs moves to the end
of its block, and one that needs no work to its start; callbacks without work between them become
neighbours. XLA keeps no order but that of data. Therefore an operand of at most 1 MiB is selected
by a condition computed from the values to wait for, at most the 32 latest ones. With
several devices this happens inside a manual computation only: elsewhere, reading an element might
move data between devices. Before this pass ``unroll`` unrolls short loops that contain a callback.

Collectives are not captured by default: with them a program ran at 0.71 times the speed in one
public report, and hung at step 838 in another. Run it last: other passes do not look into a region.

Source: TVM's Relax (rewrite_cuda_graph.cc), which defines a capture region before it looks for one;
XLA's command_buffer_conversion_pass.cc for what a graph can contain.
"""

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


@dataclass(frozen=True)
class Capture(Pass):
    """Let the program run as few CUDA graphs."""

    name: ClassVar[str] = "capture"
    summary: ClassVar[str] = "run as few CUDA graphs as the host calls allow"
    example: ClassVar[str] = "remat,capture{min_ops=20}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Unroll)
    once: ClassVar[bool] = True
    hides_operations: ClassVar[bool] = True
    not_on: ClassVar[Mapping[str, str]] = {
        "cuda": "",
        "tpu": "it has no CUDA graphs, and runs a whole program from one launch without them",
        OTHERS: "it has no CUDA graphs",
    }

    min_ops: int = option(
        5,
        doc="operations that a region has at least, constants not counted, and kernels that a "
        "graph has at least; 5 is XLA's own default for these",
        minimum=1,
    )
    loops: str = option(
        "auto",
        doc="loops and branches are captured whole, as conditional nodes (CUDA 12.3 or newer): "
        "auto, where the host would have to read a value for them; on, counted loops as well, "
        "whose nodes cost about 4 us an iteration on an H200; off, none. The bodies of others are "
        "captured, each by itself",
        choices=LOOPS,
    )
    collectives: bool = option(
        False,
        doc="exchanges between devices are captured. Public reports tell of hangs and of steps "
        "that got slower",
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


def _has_regions(module: ir.Module) -> bool:
    """Whether the pass has run on the module before."""
    return any(True for _ in marks.marks_in(module.operation, marks.CAPTURE_REGION))
