"""Run a training step one microbatch at a time, and accumulate its gradients.

The pass finds the batch among the dimensions of the step's arguments, or takes the given one, and
writes the loop over microbatches, with sums of gradients in its carry. Here x has 8 examples.

Before::

    %h = stablehlo.dot_general %x, %w         : tensor<8x64xf32>
    %d = stablehlo.dot_general %x, %g         : tensor<16x64xf32>
    %u = stablehlo.subtract %w, %d            : tensor<16x64xf32>

After::

    %r:2 = stablehlo.while(%i = %zero, %sum = %zeros) cond { %i < 4 } do {
      %part = stablehlo.dynamic_slice %x      : tensor<2x16xf32>
      %h = stablehlo.dot_general %part, %w    : tensor<2x64xf32>
      %d = stablehlo.dot_general %part, %g    : tensor<16x64xf32>
      %next = stablehlo.add %sum, %d          : tensor<16x64xf32>
      stablehlo.return %i + 1, %next
    }
    %u = stablehlo.subtract %w, %r#1          : tensor<16x64xf32>

Results are those of the original step up to the order of sums. A step whose batch cannot be
divided, e.g. by batch norm, is unchanged, and a warning names the operation and the user's line.
"""

# Modules, in the order in which a step passes through them: `batch` finds the batch, by `trial`, or
# says why there is none; `plan` has the decisions; `closed_loop` holds a budget; `record` is what
# later plans read. `phase_loops` writes the loops, from the proofs of `analysis/dimension_flow`;
# its `gathers` has sharded parameters (FSDP) gathered once.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..budgeted import BudgetedPass
from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.errors import SpecError
from ..framework.feedback import Attempt, Complaint
from ..framework.options import Axes, Budget, option
from ..framework.target import Target
from ..phase_loops.exits import own_type, widened
from ..phase_loops.write import apply_loops
from .closed_loop import is_worthwhile
from .plan import SCOPE, AccumulatePlan, AccumulateSettings, MicrobatchPlanner
from .record import AccumulateRecord, Once


@dataclass(frozen=True)
class Accumulate(BudgetedPass[AccumulateRecord]):
    """Run a training step one microbatch at a time, and accumulate its gradients."""

    name: ClassVar[str] = "accumulate"
    summary: ClassVar[str] = "run a step a microbatch at a time, summing its gradients"
    example: ClassVar[str] = "accumulate{microbatches=8}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints,)
    once: ClassVar[bool] = True
    saves_memory: ClassVar[bool] = True
    record_type: ClassVar[type[AccumulateRecord]] = AccumulateRecord

    microbatches: int | None = option(
        None,
        doc="how many microbatches; where they do not divide the batch, the last is shorter",
        minimum=1,
    )
    budget: Budget | None = option(
        None,
        doc="instead of a number: the memory that a step may take on a device, as for `fit`. "
        "Without either it is fit, what the device has",
    )
    args: Axes | None = option(
        None,
        doc="the arguments that have the batch, by name or number, each with its axis, 0 where "
        "none is given; a name stands for all arguments below it. By default the batch is the "
        "dimension that gradients are sums over",
    )
    dtype: str = option(
        "f32",
        doc="the type of sums of gradients: f32, at least float32; keep, each gradient's own",
        choices=("f32", "keep"),
    )
    gather: str = option(
        "auto",
        doc="when FSDP's parameters are gathered: once, before the loop, which holds them whole; "
        "each, with every microbatch; auto, once where the budget holds so, and without a budget "
        "where that adds at most a quarter of the memory that microbatches save",
        choices=("once", "each", "auto"),
    )
    reduce: str = option(
        "auto",
        doc="when gradients of such parameters are reduced: once, after the loop, where each "
        "device sums whole gradients; each, with every microbatch; auto, as for gather, but each "
        "where gather is once and there is no budget. Once needs parameters gathered once, and a "
        "batch that is sharded over all devices; else it is each",
        choices=("once", "each", "auto"),
    )
    phases: int = option(
        1,
        doc="how many loops over the microbatches there may be, with the values between them kept: "
        "batch norm takes five",
        minimum=1,
        maximum=16,
    )
    compiles: int = option(
        3, doc="how often the program may be compiled to hold the budget", minimum=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.microbatches is not None and self.budget is not None:
            raise SpecError(f"pass '{self.name}' wants microbatches or a budget; got both")
        if self.gather == "each" and self.reduce == "once":
            raise SpecError(
                f"pass '{self.name}' reduces gradients once only where parameters are gathered "
                "once; got gather=each reduce=once"
            )

    @property
    def bound(self) -> Budget | None:
        return self.budget or (Budget() if self.microbatches is None else None)

    def plan_after(
        self, module: ir.Module, target: Target, attempts: Sequence[Attempt[AccumulateRecord]]
    ) -> AccumulatePlan:
        return self.planner(module, target)(module, attempts)

    def planner(
        self, origin: ir.Module, target: Target
    ) -> Callable[[ir.Module, Sequence[Attempt[AccumulateRecord]]], AccumulatePlan]:
        rule = widened if self.dtype == "f32" else own_type
        settings = AccumulateSettings(self.args, self.phases, rule, self._once)
        planner = MicrobatchPlanner(origin, target, settings)

        def planned(
            module: ir.Module, attempts: Sequence[Attempt[AccumulateRecord]]
        ) -> AccumulatePlan:
            if self.microbatches is not None:
                return planner.fixed(module, self.microbatches)
            limit_bytes = self.limit_bytes(attempts, target, planner.around_bytes)
            least = self.bound is not None and self.bound.least
            return planner.within(module, limit_bytes, attempts, least=least)

        return planned

    @property
    def _once(self) -> tuple[Once, Once]:
        """Returns the least and the most work that may be done once a step."""
        if self.reduce == "once":
            return Once.SUMS, Once.SUMS
        most = Once.GATHERS if self.reduce == "each" else Once.SUMS
        by_gather = {
            "each": (Once.NOTHING, Once.NOTHING),
            # Without a budget no more memory is taken than requested.
            "once": (Once.GATHERS, most if self.bound is not None else Once.GATHERS),
            "auto": (Once.NOTHING, most),
        }
        return by_gather[self.gather]

    def is_worthwhile(
        self, attempts: Sequence[Attempt[AccumulateRecord]], limit_bytes: int
    ) -> bool:
        if self.bound is not None and self.bound.least:
            return False
        return is_worthwhile(attempts, limit_bytes)

    def complaint(
        self,
        attempts: Sequence[Attempt[AccumulateRecord]],
        best: int,
        target: Target,
        module_of_best: Callable[[], ir.Module],
        unmodified: Callable[[], ir.Module],
    ) -> Complaint | None:
        if attempts and not attempts[best].record.possible:
            return None  # the plan says why the step is not accumulated
        return super().complaint(attempts, best, target, module_of_best, unmodified)

    def remarks(
        self,
        attempts: Sequence[Attempt[AccumulateRecord]],
        best: int,
        module: ir.Module,
        target: Target,
    ) -> tuple[str, str]:
        return f"That is with {attempts[best].record.microbatches} microbatches.", ""

    def apply(self, plan: AccumulatePlan) -> None:
        assert plan.loops is not None
        apply_loops(plan.loops, SCOPE)
