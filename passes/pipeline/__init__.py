"""Run the layers of a step as a pipeline over an axis of the mesh, in one program.

A step scans over its layers, whose weights are stacked and sharded along the layers over an axis of
the mesh: XLA would gather each layer's weights on every device. This pass cuts the loop into
segments of layers, one or several for each device, and the batch into microbatches. Values that the
loop indexes by its counter stay on their device: weights, stacked residuals, gradients of weights.
Carried values travel from device to device. The pass does not distinguish forward and backward
passes: a backward loop is one that counts its layers down, whose segments run from the last device
to the first.

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
      sdy.return (the last device's result, each device a part of the batch)
    }

`schedule` assigns microbatches to devices and ticks (GPipe, and with `repeats` a circular
schedule). Code around the loops is unchanged: embedding, head and loss run on the devices' parts of
the batch.

The results are those of the original step, up to the order of sums. How each value depends on the
batch is proved (`batch`); `loop.check_body` refuses layers that cannot run so. Without a proof the
program is unchanged, and a warning names the operation and the user's line.

**Other axes of the mesh.** Where the batch is sharded over axes of its own, each device runs the
ticks on its part of the batch: weights that are sharded over them, too (FSDP), are gathered before
the ticks, and gradients reduced after them. Axes that shard weights alone, as for tensor
parallelism, are left to XLA's partitioner.

In the order in which a module passes through it:

- ``mesh_axis`` is the axis, ``segments`` reads a loop as one over layers, ``batch`` finds the
  dimension that is cut, ``schedule`` assigns microbatches to ticks; ``choice`` selects microbatches
  and repeats, by ``cost``, and warns of problems; ``early`` finds work to do before a loop;
- ``loop`` has all decisions about a loop, ``plan`` those about a module, in tables;
- ``write`` replaces the loop by the manual computation, ``places`` has the shardings of values,
  ``ticks`` writes the work of a device, ``segment_writer`` a segment, ``circular`` the order of
  layers under repeats.

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
