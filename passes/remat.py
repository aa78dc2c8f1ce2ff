"""Recompute values where they are read again, instead of keeping them in memory until then.

A value that the backward pass reads occupies memory from the forward pass on. The pass clones its
computation next to the backward reader, and in scans into the backward loop's body; the values to
save are a minimum cut. ``remat{budget=B}`` makes the plan of ``fit{budget=B moves=recompute}``.

Before::

    %0 = stablehlo.dot_general %x, %w  loc("jvp()/dot_general")
    %1 = stablehlo.tanh %0             loc("jvp()/tanh")
    ...
    %9 = stablehlo.multiply %g, %1     loc("transpose(jvp())/mul")

After::

    %0 = stablehlo.dot_general %x, %w  loc("jvp()/dot_general")
    %1 = stablehlo.tanh %0             loc("jvp()/tanh")
    ...
    %7:2 = stablehlo.optimization_barrier %0, %g
    %8 = stablehlo.tanh %7#0           loc("jvp()/hloom.remat/tanh")
    %9 = stablehlo.multiply %7#1, %8   loc("transpose(jvp())/mul")

With a budget all pure work may be recomputed: matrix products, sorts, whole loops; never a
collective, a custom call or a side effect. The plan is taken that holds it in the least time;
where none does, the one of the least memory, and a warning lists what is in memory at the peak. A
share bounds no program without matrix products and a backward pass. On a CPU with jax before 0.11.2
only scans are rewritten.

Source: the min-cut partitioner of PyTorch's AOTAutograd (Hu et al., 2022).
"""

# `recompute/` decides without a budget, and writes every plan; `planner/` holds a budget.
# Constants, iotas and splats that the clones need do not pass the barrier: XLA could not fold them
# behind it. Other values do, so that XLA's CSE cannot merge the clones with the first computation.

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from .analysis.device import DeviceView
from .analysis.loops.carries import Kept, loop_stacks
from .analysis.memory_model.targets import memory_rules
from .analysis.memory_model.tracer import predict
from .framework.feedback import Planner
from .framework.options import Budget, Bytes, option
from .framework.target import Target
from .ir import walk
from .planner import COMPILES_DOC, PlannedPass
from .planner.candidates import PlannerSettings
from .planner.plan import MemoryPlan
from .planner.record import RematRecord, obstacle_of
from .recompute.plan import plan_cheap


@dataclass(frozen=True)
class Remat(PlannedPass):
    """Recompute values in the backward pass instead of saving them."""

    name: ClassVar[str] = "remat"
    summary: ClassVar[str] = "recompute what the backward pass needs, not keep it"
    example: ClassVar[str] = "remat{budget=60GiB}"

    budget: Budget | None = option(
        None,
        doc="the memory that a step may take on a device, as for `fit`. Without a budget only "
        "cheap work is recomputed",
    )
    compiles: int = option(5, doc=COMPILES_DOC, minimum=1)
    min_bytes: Bytes = option(
        Bytes(16 * 1024), doc="values that take less, or whose stacks do, are kept", minimum=0
    )

    @property
    def settings(self) -> PlannerSettings | None:
        if self.budget is None:
            return None
        return PlannerSettings(self.budget, self.compiles, min_bytes=self.min_bytes)

    def planner(self, origin: ir.Module, target: Target) -> Planner[RematRecord]:
        if self.budget is not None:
            return super().planner(origin, target)
        return lambda module, attempts: self._cheap_plan(module, target)

    def _cheap_plan(self, module: ir.Module, target: Target) -> MemoryPlan:
        plan = plan_cheap(module, target, self.min_bytes)
        obstacle = obstacle_of(
            keeps_barriers=target.keeps_barriers, scans=bool(plan.scans), lines=bool(plan.blocks)
        )
        kept = Kept()
        if plan.empty:
            device = DeviceView.of(module, memory_rules(target))
            stacks = loop_stacks(module, device.bytes_of)
            if stacks.bytes and walk.has_entry(module):
                kept = stacks.at_peak(predict(module, rules=device.rules).temp_bytes)
        return MemoryPlan(module, plan, RematRecord(obstacle=obstacle), kept=kept)
