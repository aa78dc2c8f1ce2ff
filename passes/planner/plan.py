"""The plan of `remat` for a module, and the two ways to make one: without and with a budget."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..analysis.autodiff import has_remat_name, is_backward
from ..analysis.device import DeviceView
from ..analysis.memory_model.targets import memory_rules
from ..framework import base
from ..framework.feedback import Attempt, Prediction
from ..framework.options import Budget
from ..framework.target import Target
from ..framework.text import pluralize
from ..ir import walk
from ..ir.ops import facts_of
from ..recompute.block.plan import BlockPlan, plan_block
from ..recompute.decisions import BlockDecisions, ScanDecisions
from ..recompute.scan.plan import ScanPlan, plan_scans
from .loop import Bounds, Choice, decide, temp_budget
from .model import Model, added_work
from .record import RematObstacle, RematRecord, obstacle_of
from .search import Search


@dataclass(frozen=True)
class RematPlan:
    """The plans of the straight-line blocks and of the pairs of loops, outer loops first."""

    blocks: tuple[BlockPlan, ...]
    scans: tuple[ScanPlan, ...]
    record: RematRecord = field(default_factory=RematRecord)
    """The prediction for a budget, if there is one, and the obstacle that was found."""

    @property
    def empty(self) -> bool:
        return not self.blocks and not self.scans

    @property
    def parts(self) -> tuple[BlockPlan | ScanPlan, ...]:
        return (*self.blocks, *self.scans)

    @property
    def freed_bytes(self) -> int:
        """Bytes of residuals that are no longer saved."""
        return sum(part.freed_bytes for part in self.parts)

    @property
    def added_bytes(self) -> int:
        """Bytes of values that are saved instead."""
        return sum(part.added_bytes for part in self.parts)

    def summary(self) -> str:
        if self.empty:
            obstacle = self.record.obstacle
            because = self.record.unplanned or (obstacle.reason if obstacle else "")
            return f"nothing to recompute: {because}" if because else "nothing to recompute"
        text = (
            f"{self.effect()}, {self.freed_bytes / 2**20:.1f} MiB of "
            f"residuals not kept, {self.added_bytes / 2**20:.1f} MiB kept in their place"
        )
        if (prediction := self.record.prediction) is not None:
            text += f", {prediction.step_bytes / 2**20:.1f} MiB predicted for the step"
        return text

    def effect(self) -> str:
        clones = sum(len(group.cloned) for block in self.blocks for group in block.groups)
        clones += sum(len(scan.runs) for scan in self.scans)
        return f"{pluralize(clones, 'operation')} recomputed"

    def to_json(self) -> dict[str, object]:
        return {
            "freed_bytes": self.freed_bytes,
            "added_bytes": self.added_bytes,
            "blocks": [block.to_json() for block in self.blocks],
            "scans": [pair for scan in self.scans for pair in scan.to_json()],
        } | self.record.to_json()

    def decisions(self) -> tuple[base.Decision, ...]:
        """One decision for each clone, and for each stack dropped without one; blocks first."""
        blocks = [
            d for n, plan in enumerate(self.blocks) for d in BlockDecisions(plan, n).decisions
        ]
        scans = [d for n, plan in enumerate(self.scans) for d in ScanDecisions(plan, n).decisions]
        return (*blocks, *scans)

    def restricted_to(self, ids: Collection[str]) -> RematPlan:
        """The plan with these decisions alone, without a prediction."""
        blocks = (BlockDecisions(plan, n).restricted_to(ids) for n, plan in enumerate(self.blocks))
        scans = (ScanDecisions(plan, n).restricted_to(ids) for n, plan in enumerate(self.scans))
        return RematPlan(
            tuple(plan for plan in blocks if plan is not None),
            tuple(plan for plan in scans if plan is not None),
        )


def plan_cheap(module: ir.Module, target: Target, min_bytes: int) -> RematPlan:
    """The plan without a budget: cheap work is recomputed where that saves memory."""
    code_blocks = list(walk.code_blocks(module.operation))
    device = DeviceView.of(module, memory_rules(target))
    scans = [plan for block in code_blocks for plan in plan_scans(block, min_bytes, device=device)]
    if not target.keeps_barriers:
        obstacle = _obstacle_of(target, scans, ())
        return RematPlan((), tuple(scans), RematRecord(obstacle=obstacle))
    # A scan's plan rewrites the bodies of its loops, so no block plan may cover them, nor the
    # bodies that an earlier run rewrote.
    taken = {loop for scan in scans for loop in scan.loops}
    blocks = [
        plan
        for block in code_blocks
        if not any(op in taken or has_remat_name(op) for op in walk.ancestors(block))
        and (plan := plan_block(block, min_bytes, device)).groups
    ]
    obstacle = _obstacle_of(target, scans, blocks)
    return RematPlan(tuple(blocks), tuple(scans), RematRecord(obstacle=obstacle))


def _obstacle_of(
    target: Target, scans: Collection[object], lines: Collection[object]
) -> RematObstacle | None:
    return obstacle_of(keeps_barriers=target.keeps_barriers, scans=bool(scans), lines=bool(lines))


class BudgetPlanner:
    """Plans for a budget. The module is analysed once, and each attempt edits a clone of it."""

    def __init__(
        self,
        origin: ir.Module,
        target: Target,
        bounds: Bounds,
        min_bytes: int,
    ) -> None:
        self.origin, self.target = origin, target
        self.bounds, self.budget = bounds, bounds.budget
        self.min_bytes = min_bytes

    @functools.cached_property
    def _model(self) -> Model:
        return Model(self.origin, self.target, self.min_bytes)

    def __call__(self, module: ir.Module, attempts: Sequence[Attempt[RematRecord]]) -> RematPlan:
        """The next plan, for a clone of the module or the module itself, after these attempts."""
        try:
            model, budget = self._model, self.budget
        except walk.NoEntryError as error:
            return RematPlan((), (), RematRecord(unplanned=f"no budget can be held: {error}"))
        first = attempts or (_predicted(model),)
        limit = temp_budget(budget, first if budget.percent is None else attempts, self.target)
        search = Search(model, attempts[-1].record.considered if attempts else ())
        if limit is None:
            # A share of what the unmodified program takes, which is compiled first to find out.
            unmodified = search.estimate(None)
            choice = Choice(unmodified, unmodified.temp_bytes, (unmodified,))
        else:
            choice = decide(search, limit, attempts, self.bounds)
        candidate = choice.estimate.candidate
        plans = ((), ()) if candidate is None else model.plan(candidate)
        around_bytes = first[0].step_bytes - first[0].temp_bytes
        added_flops, added_seconds = added_work(*plans, model.pricing)
        record = RematRecord(
            prediction=Prediction(
                step_bytes=around_bytes + choice.expected_bytes,
                temp_bytes=choice.expected_bytes,
                added_flops=added_flops,
            ),
            estimate=choice.estimate,
            considered=choice.known,
            added_seconds=added_seconds,
            obstacle=obstacle_in(model, self.target, budget),
            unmodified_bytes=model.estimate(None).temp_bytes,
        )
        blocks, scans = model.on(module, plans)
        return RematPlan(blocks, scans, record)


def obstacle_in(model: Model, target: Target, budget: Budget) -> RematObstacle | None:
    """Why nothing of a program is recomputed for a budget, whatever it is; None where some is."""
    if (
        budget.percent is not None
        and not model.pairs
        and not any(facts_of(op.name).is_product or is_backward(op) for op in model.operations)
    ):
        return RematObstacle.HELPER
    return _obstacle_of(target, model.pairs, model.block_plans.forwards)


def _predicted(model: Model) -> Attempt[RematRecord]:
    """The attempt that a compile of the unmodified module is predicted to be."""
    return Attempt(RematRecord(), model.unmodified().around_bytes, 0)
