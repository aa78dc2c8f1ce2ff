"""Recompute values where they are read again, instead of keeping them in memory until then.

A value that the backward pass reads occupies memory from the time the forward pass computes it.
This pass clones its computation next to the backward reader; the clones start from other values
that are saved. Which values to save is a minimum vertex cut, solved for each window of the
backward pass of a straight-line block, and for the bodies of ``lax.scan`` loops that read what
others stack, together with the scans inside them.

In straight-line code live ranges show where the backward pass begins: at the *border*, across which
the most bytes are live. A program with one gradient inside another, or with several, has several
borders, and one without any gradient may have one, too.

Without a budget only cheap work is recomputed (elementwise operations, broadcasts, conversions,
transposes, slices, reductions), and only if that saves memory.

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

With a budget all pure work may be recomputed: matrix products, convolutions, gathers, sorts, whole
loops; never a collective, a custom call or an operation with a side effect. A sharding constraint,
where XLA's partitioner may insert a collective, is recomputed only if its operand provably has that
sharding already, or if it gathers a layer's parameters. Repeated exchanges of devices, sums of
products and gathers, count by the links of the target. Of the plans whose memory is within the
budget, by a model of the target and of XLA, the pass takes the one that adds the least time; a
second of cheap work counts one sixteenth.
With a tight budget::

    %6:3 = stablehlo.optimization_barrier %x, %w, %g
    %7 = stablehlo.dot_general %6#0, %6#1  loc("jvp()/hloom.remat/dot_general")
    %8 = stablehlo.tanh %7                 loc("jvp()/hloom.remat/tanh")
    %9 = stablehlo.multiply %6#2, %8       loc("transpose(jvp())/mul")

XLA's memory figure for the compiled plan then corrects the model. Another plan is compiled if the
budget is exceeded, or if another plan promises to meet it in less added time. If no plan meets the
budget, the pass takes the one with the least memory, and a warning lists what is in memory at its
peak and why the pass did not recompute more. A budget given as a share does not bound programs that
have neither a matrix product nor a backward pass, such as initializers, and there is no warning for
a program without a backward pass, such as an evaluation, that misses its share.

Constants, iotas and splats that the clones need are cloned as well and do not pass the barrier:
after a barrier XLA could not fold them and would keep them live. All other values that the clones
start from pass the barrier, so that XLA's CSE cannot merge the clones with the first computation. A
rewritten scan needs no barrier, since the forward and the backward body are separate computations:
the forward loop stacks other residuals, and the backward body recomputes the rest. A rewritten
backward loop waits for small results of large values, such as the loss, which XLA may compute last
and then keeps the logits for. On a target that drops barriers early (XLA:CPU of jaxlib 0.10) only
scans are rewritten. In straight-line blocks work that a user's ``jax.checkpoint`` recomputes after
the border is unchanged.

Two loops are planned together where one reads, slice by slice, the other's stacks, whatever their
purpose: a gradient inside of another gradient, a second derivative, or no gradient at all. Where
several loops read a stack, its values are kept for all of them or recomputed in each. A loop that
reads stacks may itself stack for others; the recomputation at the end of such a chain starts from
values that its first loop stored.

In the simplest candidates a window may recompute from far back. With *segments* it recomputes no
more than the part of the forward pass that it mirrors, such as a layer, all of it after one
barrier, as ``jax.checkpoint`` does.

``recompute/`` decides without a budget, and writes every plan. ``planner/`` holds a budget:
``remat{budget=B}`` makes the plan of ``fit{budget=B moves=recompute}``.

Source: the min-cut partitioner of PyTorch's AOTAutograd (Hu et al., 2022) for the values to keep.
Checkmate (Jain et al., 2020) solves one integer program over the whole schedule for a budget; this
pass searches for a price on time instead.
"""

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
        doc="the memory that a step may take on a device: bytes for arguments, results and all "
        "temporaries; a share of the temporaries that the program takes without the pass; fit, for "
        "what the device has; or min, for the least that can be reached, of which a last tenth is "
        "not worth the time of another step. Matrix products are recomputed where that is needed. "
        "Without a budget only cheap work is recomputed, as much as saves memory",
    )
    compiles: int = option(5, doc=COMPILES_DOC, minimum=1)
    min_bytes: Bytes = option(
        Bytes(16 * 1024),
        doc="what takes less memory than this is kept as it is: a value, or all that a loop stacks "
        "of one",
        minimum=0,
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
