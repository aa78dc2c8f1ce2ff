"""Passes that only tests use: their effect shows in a program's results.

They are not in hloom's table; a test puts them there with `registry.registered(...)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from jax.extend.mlir import ir

from hloom.passes.framework.base import Pass, Plan
from hloom.passes.framework.feedback import Attempt, Complaint, MeasuredPass, PlanRecord, Prediction
from hloom.passes.framework.options import Budget, Bytes, option
from hloom.passes.framework.structure import written
from hloom.passes.framework.target import Target
from hloom.passes.framework.text import pluralize
from hloom.passes.ir import walk


@dataclasses.dataclass(frozen=True)
class ToyPlan:
    """The operations to work on."""

    module: ir.Module
    operations: tuple[ir.Operation, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.operations

    def summary(self) -> str:
        return f"{len(self.operations)} operations"

    def to_json(self) -> dict[str, object]:
        return {"operations": len(self.operations)}


@dataclasses.dataclass(frozen=True)
class Toy(Pass):
    """Has one option of each kind and does nothing."""

    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "Has one option of each kind."
    example: ClassVar[str] = "toy{limit=4}"

    limit: int = option(8, doc="How many.", unit="things", minimum=-5, maximum=100)
    ratio: float = option(0.5, doc="How much.", minimum=0.0)
    weight: float = option(1.0, doc="How heavy.")
    loud: bool = option(False, doc="Whether to shout.")
    mode: str = option("fast", doc="Which way.", choices=("fast", "small-first"))
    size: Bytes = option(Bytes(4096), doc="How large.")
    room: Bytes = option(Bytes(2**30), doc="How much room.", minimum=2**20)
    budget: Budget | None = option(None, doc="How much in all.")

    def plan(self, module: ir.Module, target: Target) -> Plan:
        return ToyPlan(module)

    def apply(self, plan: Any) -> None:
        raise AssertionError("its plan is empty")


@dataclasses.dataclass(frozen=True)
class ForTests(Pass):
    """A pass that nobody lists."""

    summary: ClassVar[str] = "Is for tests."

    def __init_subclass__(cls) -> None:
        cls.example = cls.name


@dataclasses.dataclass(frozen=True)
class ReplaceTwo(ForTests):
    """Replaces every constant 2.0 by another number: `x * 2.0` tells whether the pass ran."""

    name: ClassVar[str] = "replace-two"

    by: float = option(3.0, doc="What to put in place of 2.0.")

    def plan(self, module: ir.Module, target: Target) -> ToyPlan:
        return ToyPlan(module, tuple(filter(_is_two, walk.operations(module.operation))))

    def apply(self, plan: ToyPlan) -> None:
        for constant in plan.operations:
            value = ir.DenseFPElementsAttr(constant.attributes["value"])
            type_ = ir.RankedTensorType(value.type)
            constant.attributes["value"] = ir.DenseElementsAttr.get_splat(
                type_, ir.FloatAttr.get(type_.element_type, self.by)
            )


def _is_two(operation: ir.Operation) -> bool:
    if operation.name != "stablehlo.constant":
        return False
    value = operation.attributes["value"]
    if not isinstance(value, ir.DenseFPElementsAttr) or not value.is_splat:
        return False
    return bool(ir.FloatAttr(value.get_splat_value()).value == 2.0)


@dataclasses.dataclass(frozen=True)
class Touch(ForTests):
    """Marks every function with an attribute; a mere preparation."""

    name: ClassVar[str] = "touch"
    preparation: ClassVar[bool] = True

    def plan(self, module: ir.Module, target: Target) -> ToyPlan:
        functions = (op.operation for op in module.body.operations)
        return ToyPlan(module, tuple(op for op in functions if "touched" not in op.attributes))

    def apply(self, plan: ToyPlan) -> None:
        for function in plan.operations:
            function.attributes["touched"] = ir.UnitAttr.get()


@dataclasses.dataclass(frozen=True)
class NeedsTouch(ReplaceTwo):
    """Like ReplaceTwo, after Touch."""

    name: ClassVar[str] = "needs-touch"
    requires: ClassVar[tuple[type[Pass], ...]] = (Touch,)


@dataclasses.dataclass(frozen=True)
class NeedsBoth(ReplaceTwo):
    """Like ReplaceTwo, after NeedsTouch and what that needs."""

    name: ClassVar[str] = "needs-both"
    requires: ClassVar[tuple[type[Pass], ...]] = (NeedsTouch, Touch)


@dataclasses.dataclass(frozen=True)
class Fail(ForTests):
    """Fails in the phase it is told to, on programs that have a constant 2.0."""

    name: ClassVar[str] = "fail"

    phase: str = option("apply", doc="Where.", choices=("plan", "apply", "verify", "compile"))

    def plan(self, module: ir.Module, target: Target) -> ToyPlan:
        plan = ReplaceTwo().plan(module, target)
        if self.phase == "plan" and not plan.empty:
            raise LookupError("no plan\nfor this")
        return plan

    def apply(self, plan: ToyPlan) -> None:
        constant = plan.operations[0]
        if self.phase == "apply":
            raise LookupError("cannot apply")
        if self.phase == "verify":
            # A constant whose type and value disagree does not verify.
            constant.attributes["value"] = ir.DenseElementsAttr.get_splat(
                ir.RankedTensorType.get([7], ir.F32Type.get()),
                ir.FloatAttr.get(ir.F32Type.get(), 0.0),
            )
        if self.phase == "compile":
            # It verifies, but no backend has a kernel of that name.
            call = ir.Operation.create(
                "stablehlo.custom_call",
                results=[constant.results[0].type],
                attributes={"call_target_name": ir.StringAttr.get("no_such_kernel")},
                ip=ir.InsertionPoint.after(constant),
            )
            constant.results[0].replace_all_uses_with(call.results[0])


@dataclasses.dataclass(frozen=True)
class DropPlan:
    """The matrix products to leave out."""

    dropped: tuple[ir.Operation, ...]

    @property
    def empty(self) -> bool:
        return not self.dropped

    def summary(self) -> str:
        return f"{pluralize(len(self.dropped), 'product')} left out"

    @property
    def record(self) -> PlanRecord:
        saved = 100 * len(self.dropped)
        return PlanRecord(Prediction(1000 - saved, 500 - saved, added_flops=0))

    def to_json(self) -> dict[str, object]:
        return {"dropped": len(self.dropped), "record": written(self.record)}


@dataclasses.dataclass(frozen=True)
class DropProducts(MeasuredPass[PlanRecord]):
    """Leaves out as many square matrix products as a budget needs: the result tells how many.

    Its first plan leaves everything as it is, whatever the budget, and each one more out. It
    predicts 1000 bytes, half of them temporary, and 100 less for each product.
    """

    name: ClassVar[str] = "drop-products"
    summary: ClassVar[str] = "Leaves out matrix products."
    example: ClassVar[str] = "drop-products{budget=fit}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Touch,)

    budget: Budget | None = option(None, doc="Bound of the step's memory.")
    compiles: int = option(3, doc="Attempts at most.", minimum=1)
    fail: str = option("no", doc="Where.", choices=("no", "plan", "apply", "ask", "compile"))

    def plan_after(
        self, module: ir.Module, target: Target, attempts: Sequence[Attempt[PlanRecord]]
    ) -> DropPlan:
        if attempts and self.fail == "plan":
            raise LookupError("no second plan")
        products = [
            op for op in walk.operations(module.operation) if op.name == "stablehlo.dot_general"
        ]
        return DropPlan(tuple(products[: len(attempts)]))

    def apply(self, plan: DropPlan) -> None:
        if self.fail == "apply":
            raise LookupError("cannot apply")
        for product in plan.dropped:
            if self.fail == "compile":
                kernel = {"call_target_name": ir.StringAttr.get("no_such_kernel")}
                new = ir.Operation.create(
                    "stablehlo.custom_call",
                    results=[product.results[0].type],
                    attributes=kernel,
                    ip=ir.InsertionPoint.after(product),
                ).results[0]
            else:
                new = product.operands[0]
            product.results[0].replace_all_uses_with(new)
            product.erase()

    def wants_another(self, attempts: Sequence[Attempt[PlanRecord]], target: Target) -> bool:
        if self.fail == "ask":
            raise LookupError("cannot say")
        return self._too_much(attempts, target) > 0

    def best(self, attempts: Sequence[Attempt[PlanRecord]], target: Target) -> int:
        least = min(attempt.step_bytes for attempt in attempts)
        return next(i for i, attempt in enumerate(attempts) if attempt.step_bytes == least)

    def complaint(
        self,
        attempts: Sequence[Attempt[PlanRecord]],
        best: int,
        target: Target,
        module_of_best: Callable[[], ir.Module],
        unmodified: Callable[[], ir.Module],
    ) -> Complaint | None:
        if attempts and (over_bytes := self._too_much(attempts, target)) > 0:
            return Complaint(f"{pluralize(over_bytes, 'byte')} over the budget.")
        return None

    def _too_much(self, attempts: Sequence[Attempt[PlanRecord]], target: Target) -> int:
        """Bytes of the least attempt above the bound."""
        least = min(attempt.step_bytes for attempt in attempts)
        if self.budget is None:
            return 0
        if self.budget.size_bytes is not None:
            return least - self.budget.size_bytes
        if self.budget.percent is not None:
            temp_bytes = min(attempt.temp_bytes for attempt in attempts)
            return temp_bytes - int(attempts[0].temp_bytes * self.budget.percent / 100)
        return least - target.usable_bytes
