"""Run the layers of a step as a pipeline over an axis of the mesh, in one program.

A step scans over its layers, whose weights are stacked and sharded along the layers over an axis of
the mesh: XLA would gather each layer's weights on every device. This pass cuts the loop into
segments of layers, one or several for each device, and the batch into microbatches. What the loop
indexes by its counter stays on its device: weights, stacked residuals, gradients of weights. What
it carries travels from device to device. Nothing is known of forward and backward passes: a
backward loop is one that counts its layers down, whose segments run from the last device to the
first.

Here the layers of w are on 2 devices of `stage`, and there are 4 microbatches.

Before::

    %0:2 = stablehlo.while(%i = %zero, %c = %x) cond { %i < 8 } do {
      %1 = stablehlo.dynamic_slice %w, %i            : tensor<1x64x64xf32>
      %2 = stablehlo.dot_general %c, %1              : tensor<32x64xf32>
      stablehlo.return %i + 1, %2
    }

After::

    %0 = sdy.manual_computation(%w, %x) manual_axes={"stage"} (%own: tensor<4x64x64xf32>, %start) {
      %1:3 = stablehlo.while(%t = %zero, %arrived = %start[0], %all = %start) cond { %t < 5 } do {
        %c = stablehlo.select %is_first, %all[%m], %arrived
        %2 = stablehlo.while(%k = %zero, %c) cond { %k < 4 } do {
          %3 = stablehlo.dynamic_slice %own, %k      : tensor<1x64x64xf32>
          %4 = stablehlo.dot_general %c, %3          : tensor<8x64xf32>
          stablehlo.return %k + 1, %4
        }
        %next = stablehlo.collective_permute %2
        ...
      }
      sdy.return (what the last device has, each device a part of the batch)
    }

`schedule` has who does what when (GPipe, and with `repeats` a circular schedule). Around the loops
nothing changes: embedding, head and loss run on the parts of the batch that the devices get.

The results are those of the step as it was, up to the order of sums. How each value depends on the
batch is proved (`batch`); what a layer may not hold is told (`loop.check_body`). Where anything is
not proved the program stays as it is, and a warning names the operation and the user's line.

**Other axes of the mesh.** Where the batch is sharded over axes of its own, each device runs the
ticks on its part of the batch: weights that are sharded over them, too (FSDP), are gathered before
the ticks, and gradients reduced behind. Axes that shard weights alone, as for tensor parallelism,
are left to XLA's partitioner.

In the order in which a module passes through it:

- ``mesh_axis`` is the axis, ``segments`` reads a loop as one over layers, ``batch`` finds the
  dimension that is cut, ``schedule`` is who does what when; ``choice`` takes microbatches and
  repeats, by ``cost``, and tells what is amiss; ``early`` has what had better come before a loop;
- ``loop`` has all that is decided of a loop, ``plan`` that of a module, in tables;
- ``write`` puts the manual computation in the loop's place, ``places`` says how values lie on the
  devices, ``ticks`` writes what a device does, ``segment_writer`` a segment, ``circular`` the order
  of layers under repeats.

Source: GPipe (Huang et al. 2019).
"""

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
        doc="the axis of the mesh that the layers are on: their weights are sharded over it along "
        "the axis of the layers, as P('stage')",
    )
    microbatches: int | None = option(
        None,
        doc="into how many microbatches the batch is divided. By default what the cost model finds "
        "fastest where the speed of the links is known, else the fewest that are at least twice "
        "the devices of the axis, or as many as there can be",
        minimum=2,
    )
    repeats: int | None = option(
        None,
        doc="how many segments of layers each device has, which it runs one after the other on "
        "all microbatches: it idles less, and more is sent. By default as many as the cost model "
        "finds fastest where the speed of the links is known, else 1",
        minimum=1,
    )
    dtype: str = option(
        "f32",
        doc="in what gradients are added up over microbatches: f32, which makes sums of narrower "
        "floating-point types in float32, or keep, which makes each in its own type",
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
