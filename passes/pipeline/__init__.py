"""Run the layers of a step as a pipeline over an axis of the mesh, in one program."""

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
    summary: ClassVar[str] = "run the layers of a step as a pipeline over an axis of the mesh"
    example: ClassVar[str] = "pipeline{axis=stage microbatches=16}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints,)
    once: ClassVar[bool] = True

    axis: AxisName = option(
        AxisName("stage"),
        doc="the axis of the mesh that the layers are on: their weights are sharded over it along "
        "the axis of the layers, as P('stage')",
    )
    microbatches: int | None = option(
        None,
        doc="into how many microbatches the batch is divided. By default the fewest that are twice "
        "the devices of the axis at least",
        minimum=2,
    )
    repeats: int | None = option(
        None,
        doc="how many segments of layers each device has, which it runs one after the other on all "
        "microbatches",
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
