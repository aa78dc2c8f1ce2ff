"""What a measured pass changes by hloom's models of memory and of work.

XLA tells what the program takes that it compiled. What the program would have taken without the
pass is known where an attempt compiled it so; elsewhere the models give the proportion.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.cost import all_flops
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.base import Pass, Plan, Target
from hloom.passes.framework.feedback import MeasuredPass, MeasuredPlan
from hloom.passes.framework.pipeline import Observer
from hloom.passes.ir import walk
from hloom.passes.ir.types import TensorSizes
from hloom.policy import is_strict


@dataclass(frozen=True)
class ModelledProgram:
    """A program by the models.

    Attributes:
      temp_bytes: temporary memory at the peak, on one device.
      flops: floating-point operations of one run, on all devices.
    """

    temp_bytes: int
    flops: float

    @classmethod
    def of(
        cls, module: ir.Module, target: Target, temp_bytes: int | None = None
    ) -> ModelledProgram | None:
        """The program of a module whose calls are inlined; None where it cannot be modelled.

        `temp_bytes` is the figure of the memory model where that is known already.
        """
        try:
            main = walk.entry_function(module).regions[0].blocks[0]
            sizes = TensorSizes()
            # A view of a composite has the name of the composite, not of the operation.
            flops = sum(all_flops(view.operation, sizes) for view in main.operations)
            if temp_bytes is None:
                temp_bytes = predict(module, rules=target.memory_rules).temp_bytes
            return cls(temp_bytes, flops)
        except walk.NoEntryError:
            return None
        except Exception:
            # It is a figure to show: no program shall go without its passes for it.
            if is_strict():
                raise
            return None


@dataclass(frozen=True)
class ModelledChange:
    """A program before a measured pass and after it."""

    before: ModelledProgram
    after: ModelledProgram

    def temp_bytes_before(self, temp_bytes: int) -> int:
        """Temporaries without the pass, where XLA says `temp_bytes` with it."""
        return round(temp_bytes * self.before.temp_bytes / max(self.after.temp_bytes, 1))

    @property
    def added_work(self) -> float | None:
        """FLOPs that are done once more, as a share of the program's; None where it has none."""
        if not self.before.flops:
            return None
        return max(self.after.flops - self.before.flops, 0.0) / self.before.flops


class ChangeObserver(Observer):
    """Models the program before the measured passes and after them, where these do anything.

    Args:
      driver: the index of the pass that decides on attempts; what came before it counts as given.
      last: the index of the last measured pass.
      target: what the program is compiled for.

    Attributes:
      change: None until then, and where the program cannot be modelled.
    """

    def __init__(self, driver: int, last: int, target: Target) -> None:
        self.change: ModelledChange | None = None
        self._driver, self._last, self._target = driver, last, target
        self._acts = False
        self._origin: ir.Module | None = None
        self._before: ModelledProgram | None = None

    def set_origin(self, module: ir.Module) -> None:
        """Tells of the program that the driver is given, each time as a clone of this module."""
        self._origin = module

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        """Does nothing: what the driver is given is known."""

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        """Models what became of it, with the figures that the plan of a single one has already."""
        if index == self._driver:
            self._acts = False
        if self._driver <= index <= self._last and isinstance(step, MeasuredPass):
            self._acts |= not plan.empty
        if index != self._last:
            return
        self.change = None
        if not self._acts or self._origin is None:
            return
        known = None
        if self._driver == self._last and isinstance(plan, MeasuredPlan):
            known = plan.record.modelled_temp_bytes
        was, is_ = known or (None, None)
        if self._before is None:
            self._before = ModelledProgram.of(self._origin, self._target, was)
        after = None if self._before is None else ModelledProgram.of(module, self._target, is_)
        if self._before is not None and after is not None:
            self.change = ModelledChange(self._before, after)
