"""What `remat` decided for a module, and how it came to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis import walk
from hloom.passes.analysis.cost import all_flops
from hloom.passes.analysis.loops import runs_of
from hloom.passes.analysis.phases import has_remat_name
from hloom.passes.analysis.tensor_sizes import TensorSizes
from hloom.passes.base import Attempt, Target
from hloom.passes.options import Budget
from hloom.passes.remat.budget import Decision, decide, known_json, outcomes_of, temp_budget
from hloom.passes.remat.model import Model
from hloom.passes.remat.scan import ScanPlan, plan_scans
from hloom.passes.remat.search import Search
from hloom.passes.remat.straight_line import BlockPlan, plan_block


@dataclass(frozen=True)
class Prediction:
    """What a plan made for a budget is to give on one device.

    Attributes:
      decision: the setting it was made with, and what else was considered.
      step_bytes: arguments, results and temporaries.
      added_flops: floating-point operations that are done once more.
      peak: the largest values alive when most is, as JSON.
    """

    decision: Decision
    step_bytes: int
    added_flops: float
    peak: tuple[dict[str, object], ...]

    def to_json(self) -> dict[str, object]:
        return known_json(self.decision) | {
            "predicted_step_bytes": self.step_bytes,
            "added_flops": self.added_flops,
            "peak": list(self.peak),
        }


@dataclass(frozen=True)
class RematPlan:
    """What is recomputed in each straight-line block and each pair of loops, outer ones first."""

    blocks: tuple[BlockPlan, ...]
    scans: tuple[ScanPlan, ...]
    prediction: Prediction | None = None
    """What the plan is to give; None where there is no budget to hold."""

    @property
    def empty(self) -> bool:
        return not self.blocks and not self.scans

    @property
    def parts(self) -> tuple[BlockPlan | ScanPlan, ...]:
        return (*self.blocks, *self.scans)

    @property
    def freed_bytes(self) -> int:
        """Bytes of residuals that are not kept any more."""
        return sum(part.freed_bytes for part in self.parts)

    @property
    def added_bytes(self) -> int:
        """Bytes of values that are kept in their place."""
        return sum(part.added_bytes for part in self.parts)

    def summary(self) -> str:
        if self.empty:
            return "nothing to recompute"
        clones = sum(len(group.cloned) for block in self.blocks for group in block.groups)
        clones += sum(len(site.cloned) for scan in self.scans for site in scan.sites)
        text = (
            f"{clones} operations recomputed, {self.freed_bytes / 2**20:.1f} MiB of residuals "
            f"not kept, {self.added_bytes / 2**20:.1f} MiB kept in their place"
        )
        if self.prediction is not None:
            text += f", {self.prediction.step_bytes / 2**20:.1f} MiB predicted for the step"
        return text

    def to_json(self) -> dict[str, object]:
        decisions: dict[str, object] = {
            "freed_bytes": self.freed_bytes,
            "added_bytes": self.added_bytes,
            "blocks": [block.to_json() for block in self.blocks],
            "scans": [scan.to_json() for scan in self.scans],
        }
        return decisions | (self.prediction.to_json() if self.prediction else {})


def plan_cheap(module: ir.Module, target: Target, min_bytes: int) -> RematPlan:
    """Recomputes cheap work, as much as saves memory."""
    code_blocks = list(walk.code_blocks(module.operation))
    scans = [plan for block in code_blocks for plan in plan_scans(block, min_bytes)]
    if not target.keeps_barriers:
        return RematPlan((), tuple(scans))
    # A scan's plan rewrites the bodies of its loops, so no other plan may speak of them, nor
    # of the bodies that an earlier run rewrote.
    taken = {loop for scan in scans for loop in (scan.pair.forward.op, scan.pair.backward.op)}
    blocks = [
        plan
        for block in code_blocks
        if not any(op in taken or has_remat_name(op) for op in walk.ancestors(block))
        and (plan := plan_block(block, min_bytes)).groups
    ]
    return RematPlan(tuple(blocks), tuple(scans))


def plan_within(
    module: ir.Module,
    target: Target,
    attempts: Sequence[Attempt],
    budget: Budget,
    min_bytes: int,
) -> RematPlan:
    """Recomputes what the budget asks for, given what XLA made of earlier plans."""
    model = Model(module, target, min_bytes)
    first = attempts or (_predicted(model),)
    limit = temp_budget(budget, first if budget.percent is None else attempts, target)
    search = Search(model, outcomes_of(attempts[-1].plan) if attempts else ())
    if limit is None:
        # A share of what the program takes as it is: to be seen first.
        unmodified = search.outcome(None)
        decision = Decision(unmodified, unmodified.temp_bytes, (unmodified,))
    else:
        decision = decide(search, limit, attempts)
    setting = decision.outcome.setting
    blocks, scans = ((), ()) if setting is None else model.plan(setting)
    around = first[0].step_bytes - first[0].temp_bytes
    prediction = Prediction(
        decision,
        step_bytes=around + decision.expected_bytes,
        added_flops=_added_flops(blocks, scans),
        peak=tuple(model.owners(setting)),
    )
    return RematPlan(blocks, scans, prediction)


def _predicted(model: Model) -> Attempt:
    """What a compile of the module as it is would give, as far as that can be told before."""
    memory = model.unmodified()
    return Attempt({}, memory.argument_bytes, memory.output_bytes, memory.alias_bytes, 0)


def _added_flops(blocks: Sequence[BlockPlan], scans: Sequence[ScanPlan]) -> float:
    sizes, flops = TensorSizes(), 0.0
    for block in blocks:
        runs = runs_of(block.groups[0].before.block) if block.groups else 0
        flops += sum(all_flops(op, sizes) * runs for group in block.groups for op in group.cloned)
    for scan in scans:
        once = sum(all_flops(op, sizes) * times for op, times in scan.runs)
        flops += once * runs_of(scan.pair.backward.op.block)
    return flops
