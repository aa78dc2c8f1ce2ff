"""Passes that show what hloom-opt does with a pass: one that speaks, three that fail."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from jax.extend.mlir import ir

from hloom.passes.framework.options import option
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from support.toy_passes import ForTests, ToyPlan


def operations_named(module: ir.Module, name: str) -> tuple[ir.Operation, ...]:
    return tuple(op for op in walk.operations(module.operation) if op.name == name)


@dataclasses.dataclass(frozen=True)
class Complain(ForTests):
    """Emits an error on every addition, and then fails where it is told to."""

    name: ClassVar[str] = "complain"

    fail: bool = option(False, doc="Fail after the last one.")

    def plan(self, module: ir.Module, target: Target) -> ToyPlan:
        additions = operations_named(module, "stablehlo.add")
        for addition in additions:
            addition.location.emit_error("additions are not wanted here")
        if additions and self.fail:
            raise ValueError("too many additions")
        return ToyPlan(module)

    def apply(self, plan: Any) -> None:
        raise AssertionError("its plan is empty")


@dataclasses.dataclass(frozen=True)
class Explode(ForTests):
    """Fails while it applies its plan."""

    name: ClassVar[str] = "explode"

    def plan(self, module: ir.Module, target: Target) -> ToyPlan:
        return ToyPlan(module, operations_named(module, "func.func"))

    def apply(self, plan: ToyPlan) -> None:
        raise ValueError("no luck today")


@dataclasses.dataclass(frozen=True)
class BreakTypes(Explode):
    """Gives every function without arguments a result that it does not return."""

    name: ClassVar[str] = "break-types"

    def apply(self, plan: ToyPlan) -> None:
        for function in plan.operations:
            function.attributes["function_type"] = ir.TypeAttr.get(ir.Type.parse("() -> i32"))


@dataclasses.dataclass(frozen=True)
class TargetPlan(ToyPlan):
    """The target that the pass was given."""

    target: Target = dataclasses.field(default_factory=Target)

    def summary(self) -> str:
        return f"for {self.target.name}"

    def to_json(self) -> dict[str, object]:
        return {"target": self.target.name}


@dataclasses.dataclass(frozen=True)
class TellTarget(ForTests):
    """Writes down what it is to plan for."""

    name: ClassVar[str] = "tell-target"

    def plan(self, module: ir.Module, target: Target) -> TargetPlan:
        return TargetPlan(module, (module.operation,), target)

    def apply(self, plan: TargetPlan) -> None:
        text = f"{plan.target.platform} {plan.target.name} {plan.target.memory_bytes}"
        plan.module.operation.attributes["test.target"] = ir.StringAttr.get(text)


OPT_PASSES = (BreakTypes, Complain, Explode, TellTarget)
