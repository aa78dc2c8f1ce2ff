"""What `uninitialized-stacks` relies on, by its definition: stacks that start as garbage."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.cse import Cse
from hloom.passes.framework.base import Pass
from hloom.passes.framework.target import Target
from hloom.passes.free_constants import FreeConstants
from hloom.passes.inline import Inline
from hloom.passes.ir import walk
from hloom.passes.ir.marks import UNINITIALIZED, mark_name
from hloom.passes.uninitialized_stacks import StacksPlan, UninitializedStacks


@dataclasses.dataclass(frozen=True)
class GarbageStacks(Pass):
    """Starts the stacks that could be uninitialised as NaNs, on every platform."""

    name: ClassVar[str] = "garbage-stacks"
    summary: ClassVar[str] = "start stacks as garbage"
    example: ClassVar[str] = "garbage-stacks"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Cse, FreeConstants)

    def plan(self, module: ir.Module, target: Target) -> StacksPlan:
        plan = _STACKS.plan(module, target)
        assert isinstance(plan, StacksPlan)
        return plan

    def apply(self, plan: StacksPlan) -> None:
        _STACKS.apply(plan)
        for op in list(walk.operations(plan.module.operation)):
            if mark_name(op) == UNINITIALIZED:
                with ir.InsertionPoint(op), op.location:
                    op.results[0].replace_all_uses_with(_garbage(op.results[0].type))
                op.erase()


_STACKS = UninitializedStacks(min_bytes=type(UninitializedStacks().min_bytes)(1))


def _garbage(type_: ir.Type) -> ir.Value:
    """NaNs; of integers those with all bits set."""
    tensor = ir.RankedTensorType(type_)
    element = tensor.element_type
    scalar = ir.RankedTensorType.get([], element)
    if isinstance(element, ir.IntegerType):
        text = "true" if element.width == 1 else "0"
        one = stablehlo.constant(ir.Attribute.parse(f"dense<{text}> : {scalar}"))
        one = one if element.width == 1 else stablehlo.not_(one)
    else:
        one = stablehlo.constant(ir.Attribute.parse("dense<0x7FC00000> : tensor<f32>"))
        one = stablehlo.convert(scalar, one)
    return stablehlo.broadcast_in_dim(tensor, one, ir.DenseI64ArrayAttr.get([]))
