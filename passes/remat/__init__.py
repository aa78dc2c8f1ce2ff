"""Recompute in the backward pass what it needs, instead of keeping it from the forward pass.

A value that the backward pass reads is kept in memory from the moment the forward pass makes it.
This pass computes it again, beside its backward reader, from other values that are kept. What to
keep is a minimum cut: in each straight-line block window by window of the backward pass, and in the
body of each ``lax.scan``, scans inside scans together.

Without a budget only cheap work is done again (elementwise operations, broadcasts, conversions,
transposes, slices, reductions), as much as saves memory.

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

With a budget any pure work may be: matrix products, convolutions, gathers, sorts, whole loops;
never a collective, a custom call or anything with a side effect. At no level is a sharding
constraint repeated, which may be where XLA's partitioner puts a collective, unless its operand
provably has that sharding already. The plan is the one of least added
time, in which a second of cheap work counts a sixteenth, whose memory, by a model of the target and
of XLA, is within the budget. After a tight one::

    %6:3 = stablehlo.optimization_barrier %x, %w, %g
    %7 = stablehlo.dot_general %6#0, %6#1  loc("jvp()/hloom.remat/dot_general")
    %8 = stablehlo.tanh %7                 loc("jvp()/hloom.remat/tanh")
    %9 = stablehlo.multiply %6#2, %8       loc("transpose(jvp())/mul")

XLA's figure for the compiled plan then corrects the model, and another plan is compiled where the
budget is not held, or can be held at less added time. Where no plan holds it, the one with the
least memory is compiled, and a complaint tells what is in memory at its peak, and what kept the
pass from doing more. A share is missed in the same way as a size, but for small programs without a
backward pass (``helper_bytes``).

Constants, iotas and splats that the clones need are cloned beside them and never pass a barrier:
behind one they could not fold and would be kept alive. Everything else that the clones start from
is behind the barrier, so that XLA's CSE cannot merge them with the first computation. In a scan the
forward loop stacks other residuals and the backward body recomputes the rest; the two bodies are
apart, so no barrier is needed. Where the target drops barriers too early for them to hold (XLA:CPU
of jaxlib 0.10), only scans are rewritten. The work of a user's ``jax.checkpoint`` counts as
backward work and stays.

Source: the min-cut partitioner of PyTorch's AOTAutograd (Hu et al., 2022) for what to keep.
Checkmate (Jain et al., 2020) states the budget as one integer program over the whole schedule; here
a price on time is searched for instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from hloom.passes.cse import Cse
from hloom.passes.framework.base import Pass, Target
from hloom.passes.framework.feedback import Attempt, Complaint, MeasuredPass, Planner
from hloom.passes.framework.options import Budget, Bytes, option
from hloom.passes.free_constants import FreeConstants
from hloom.passes.inline import Inline
from hloom.passes.ir.while_rewriter import Replacements
from hloom.passes.remat.block.rewrite import apply_block
from hloom.passes.remat.budget.closed_loop import best_of, is_worthwhile, temp_budget
from hloom.passes.remat.explain import describe_floor, describe_peak
from hloom.passes.remat.obstacle import RematObstacle
from hloom.passes.remat.plan import BudgetPlanner, RematPlan, plan_cheap
from hloom.passes.remat.record import RematRecord
from hloom.passes.remat.scan.rewrite import apply_scan, finish_scans

_UNMEASURED = (
    "XLA does not tell what memory the program takes here, so that it is not known whether the "
    "budget holds."
)
_FOR_HELPERS = (
    "Where it is no program that the share is meant for, raise helper_bytes, or give the share to "
    "the training step alone, as its compiler_options."
)


@dataclass(frozen=True)
class Remat(MeasuredPass[RematRecord]):
    """Recompute values in the backward pass instead of keeping them."""

    name: ClassVar[str] = "remat"
    summary: ClassVar[str] = "recompute what the backward pass needs instead of keeping it"
    example: ClassVar[str] = "remat{budget=60GiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Cse, FreeConstants)
    once: ClassVar[bool] = True
    record_type: ClassVar[type[RematRecord]] = RematRecord

    budget: Budget | None = option(
        None,
        doc="the memory that a step may take on a device: bytes for arguments, results and all "
        "temporaries; a share of the temporaries that the program takes without the pass; fit, for "
        "what the device has; or min, for the least that can be reached. Matrix products are "
        "recomputed where that is needed. Without a budget only cheap work is recomputed, as much "
        "as saves memory",
    )
    compiles: int = option(
        3, doc="how often the program may be compiled to hold the budget", minimum=1
    )
    min_bytes: Bytes = option(
        Bytes(16 * 1024),
        doc="values smaller than this are kept as they are",
        minimum=0,
    )

    helper_bytes: Bytes = option(
        Bytes(2**20),
        doc="a share does not bound a program without a backward pass whose temporaries are "
        "smaller than this: the helper programs that JAX compiles beside a step",
        minimum=0,
    )

    def plan_after(
        self, module: ir.Module, target: Target, attempts: Sequence[Attempt[RematRecord]]
    ) -> RematPlan:
        if self.budget is None:
            return plan_cheap(module, target, self.min_bytes)
        return BudgetPlanner(module, target, self.budget, self.min_bytes)(module, attempts)

    def planner(self, origin: ir.Module, target: Target) -> Planner[RematRecord]:
        if self.budget is None:
            return super().planner(origin, target)
        return BudgetPlanner(origin, target, self.budget, self.min_bytes)

    def wants_another(self, attempts: Sequence[Attempt[RematRecord]], target: Target) -> bool:
        if self.budget is None:
            return False
        limit = temp_budget(self.budget, attempts, target)
        return limit is not None and is_worthwhile(attempts, limit)

    def best(self, attempts: Sequence[Attempt[RematRecord]], target: Target) -> int:
        if self.budget is None:
            return len(attempts) - 1
        return best_of(attempts, temp_budget(self.budget, attempts, target))

    def complaint(
        self,
        attempts: Sequence[Attempt[RematRecord]],
        best: int,
        target: Target,
        module_of_best: Callable[[], ir.Module],
    ) -> Complaint | None:
        if self.budget is None:
            return None
        if not attempts:
            return Complaint(_UNMEASURED)
        if why := attempts[best].record.unplanned:
            return Complaint(f"{why}.")
        limit = temp_budget(self.budget, attempts, target)
        if limit is None:
            return Complaint(
                f"the memory of {target.name} is not known, so that nothing was done to fit it."
            )
        attempt = attempts[best]
        if attempt.temp_bytes <= limit or self.budget.least:
            return None
        obstacle = self._obstacle(attempts, best)
        is_forward = obstacle is RematObstacle.NO_BACKWARD
        percent = self.budget.percent
        if percent is not None and is_forward and attempt.temp_bytes < self.helper_bytes:
            return None
        around = 0 if percent is not None else attempt.step_bytes - attempt.temp_bytes
        sentences = [
            describe_floor(percent, attempt.temp_bytes + around, limit + around),
            obstacle.sentence if obstacle else "",
            _FOR_HELPERS if is_forward and percent is not None else "",
            describe_peak(module_of_best()),
        ]
        return Complaint(" ".join(filter(None, sentences)), str(obstacle) if is_forward else "")

    def _obstacle(
        self, attempts: Sequence[Attempt[RematRecord]], best: int
    ) -> RematObstacle | None:
        """Why not more is recomputed, where that is more than the floor itself."""
        if found := attempts[0].record.obstacle:
            return found
        if attempts[best].record.candidate is not None:
            return None
        return RematObstacle.ONE_COMPILE if self.compiles == 1 else RematObstacle.NO_GAIN

    def apply(self, plan: RematPlan) -> None:
        replaced = Replacements()
        for scan in plan.scans:
            apply_scan(scan, replaced)
        for block_plan in plan.blocks:
            apply_block(block_plan, replaced)
        finish_scans(replaced)
