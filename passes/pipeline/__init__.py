"""Run the layers of a step as a pipeline over an axis of the mesh, in one program.

The pass cuts a scan over layers, whose stacked weights are sharded along the layers, into segments
on devices, and the batch into microbatches. Values that the loop indexes by its counter stay on
their device; carried values travel. Here the layers of w are on 2 devices of ``stage``, with 4
microbatches.

Before::

    %0 = stablehlo.while(%c = %x) (8 times) { ... a layer, on 32 rows }

After::

    %0 = sdy.manual_computation(%w, %x) manual_axes={"stage"} (%own: tensor<4x64x64xf32>, %start) {
      %1:2 = stablehlo.while(%arrived = %start[0], %all = %start) (5 times) {
        %c = stablehlo.select %is_first, %all[%m], %arrived
        %2 = stablehlo.while(%c) (4 times) { ... a layer, on 8 rows }
        %next = stablehlo.collective_permute %2
      }
    }

The schedule is GPipe's, and with ``repeats`` a circular one. Results are those of the original
step up to the order of sums; where that is not proved the program is unchanged, and a warning
names the operation and the user's line.

Source: GPipe (Huang et al. 2019).
"""

# Modules, in the order in which a module of IR passes through them:
# - `mesh_axis` is the axis, `segments` reads a loop as one over layers, `batch` finds the
#   dimension that is cut, `schedule` assigns microbatches to ticks; `choice` selects microbatches
#   and repeats, by `cost`, and warns of problems; `early` finds work to do before a loop;
# - `loop` has all decisions about a loop (`check_body` refuses layers), `plan` those about a
#   module, in tables;
# - `write` replaces the loop by the manual computation, `places` has the shardings of values,
#   `ticks` writes the work of a device, `segment_writer` a segment, `circular` the order of
#   layers under repeats.

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.options import AxisName, option
from ..framework.target import Target
from ..phase_loops.exits import own_type, widened
from .plan import PipelinePlan, PipelineSettings, plan_pipeline
from .write import PipelineWriter


@dataclass(frozen=True)
class Pipeline(Pass):
    """Run the layers of a step as a pipeline over an axis of the mesh."""

    name: ClassVar[str] = "pipeline"
    summary: ClassVar[str] = "run layers as a pipeline over an axis of the mesh"
    example: ClassVar[str] = "pipeline{axis=stage microbatches=16}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints,)
    once: ClassVar[bool] = True
    takes_whole_loops: ClassVar[bool] = True

    axis: AxisName = option(
        AxisName("stage"),
        doc="the axis of the mesh over which stacked weights are sharded along the layers",
    )
    microbatches: int | None = option(
        None,
        doc="how many microbatches. By default as many as the cost model finds fastest, where the "
        "speed of the links is known; else at least twice the devices of the axis, where possible",
        minimum=2,
    )
    repeats: int | None = option(
        None,
        doc="segments of layers on each device: with more it idles less, and sends more. By "
        "default as many as the cost model finds fastest, where the speed of the links is known; "
        "else 1",
        minimum=1,
    )
    dtype: str = option(
        "f32",
        doc="the type of sums of gradients: f32, at least float32; keep, each gradient's own",
        choices=("f32", "keep"),
    )

    def plan(self, module: ir.Module, target: Target) -> PipelinePlan:
        rule = widened if self.dtype == "f32" else own_type
        settings = PipelineSettings(self.axis, self.microbatches, self.repeats, rule)
        return plan_pipeline(module, settings, target)

    def apply(self, plan: PipelinePlan) -> None:
        assert plan.axis is not None
        writer = PipelineWriter(plan.axis, itertools.count(plan.first_channel))
        for each in plan.decided:
            writer.write(each)
        writer.clear()
