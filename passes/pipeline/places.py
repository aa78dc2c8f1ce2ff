"""The shardings of a pipeline's values: along its axis by layers, and by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir

from ..analysis.signatures.signature import AxisLayout, Combine
from ..ir.values import shape_of
from .loop import PipelineCarry, PipelinedLoop, WrittenStack
from .mesh_axis import AxesByDimension, StageAxis


@dataclass(frozen=True)
class Places:
    """The shardings of the values of one pipelined loop."""

    pipeline: PipelinedLoop
    axis: StageAxis

    @property
    def manual(self) -> tuple[str, ...]:
        """Returns the axes of the mesh along which devices have values of their own."""
        return (self.axis.name, *self.pipeline.axes)

    def own(self, layout: AxisLayout) -> AxisLayout:
        """Returns a layout in the part of a value that a device has."""
        return replace(layout, outer=layout.outer // self.pipeline.parts)

    def by_batch(self, layout: AxisLayout | None) -> dict[int, Sequence[str]]:
        """Returns the split of a value with this layout of the batch."""
        axes = self.pipeline.axes
        return {layout.axis: axes} if layout is not None and axes else {}

    def of_stack(self, layout: AxisLayout | None) -> AxesByDimension:
        """Returns the split of a stack of layers with this layout of the batch."""
        return {0: (self.axis.name,), **self.by_batch(layout)}

    def scattered(self, stack: WrittenStack) -> tuple[int, tuple[str, ...]] | None:
        """Returns the axis of a stack summed over the batch along which a device needs a part.

        The result includes the axes of the mesh that split it there: weights that are sharded over
        the devices of the batch (FSDP) have gradients that are.
        """
        wanted = stack.placement
        if stack.combine is not Combine.SUM or wanted is None:
            return None
        for dimension, axes in enumerate(wanted.axes):
            names = tuple(each.name for each in axes if not each.part)
            count = math.prod(self.axis.sizes[name] for name in names)
            fits = shape_of(stack.type)[dimension] % count == 0
            if dimension and names and fits and set(names) <= set(self.pipeline.axes):
                return dimension, names
        return None

    def of_written(self, stack: WrittenStack) -> AxesByDimension:
        """Returns the split after the loop of a stack that it makes."""
        split = {**self.of_stack(stack.layout)}
        if (found := self.scattered(stack)) is not None:
            split[found[0]] = found[1]
        return split

    def of_result(self, carry: PipelineCarry) -> AxesByDimension:
        """Returns the split of a carry after the loop."""
        return self.by_part(carry.type, carry.layout) or self.by_batch(carry.layout)

    def by_part(self, type_: ir.Type, layout: AxisLayout | None) -> AxesByDimension | None:
        """Returns the split of a value by batch over the devices of the axis, too.

        Embedding, head and loss are divided over these devices so. None where they cannot have
        parts of the same length.
        """
        if layout is None or self.own(layout).outer != 1:
            return None
        if shape_of(type_)[layout.axis] % (self.axis.count * self.pipeline.parts):
            return None
        return {layout.axis: (*self.pipeline.axes, self.axis.name)}

    def part(self, type_: ir.Type, split: AxesByDimension) -> ir.Type:
        """Returns the type of a device's part of a value."""
        return self.axis.part(type_, split)
