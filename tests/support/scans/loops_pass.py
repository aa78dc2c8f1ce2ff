"""A pass that does to loops what `remat` does, at one price; and what it makes of a program."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, ClassVar

from jax.extend.mlir import ir

from hloom.passes.analysis.pricing import Pricing, Rates
from hloom.passes.cse import Cse
from hloom.passes.framework.base import Pass
from hloom.passes.framework.options import option
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import CPU_SPEED, Target
from hloom.passes.free_constants import FreeConstants
from hloom.passes.inline import Inline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.while_rewriter import Replacements
from hloom.passes.recompute.decisions import ScanDecisions
from hloom.passes.recompute.scan.plan import BlockScans, PairPlan, ScanPlan, plan_scans_budgeted
from hloom.passes.recompute.scan.rewrite import apply_scan, finish_scans

CHEAP, FREE, MIDDLE, DEAR = -1.0, 0.0, 1e8, 1e18
"""Bytes a second: without a price, at none, at one where it depends, and where nothing pays."""


@dataclasses.dataclass(frozen=True)
class LoopsPlan:
    scans: tuple[ScanPlan, ...]

    @property
    def empty(self) -> bool:
        return not self.scans

    def summary(self) -> str:
        return f"{len(self.scans)} pairs of loops"

    def to_json(self) -> dict[str, object]:
        return {"scans": [_described(pair) for scan in self.scans for pair in scan.pairs]}


@dataclasses.dataclass(frozen=True)
class RematLoops(Pass):
    """What `remat` does to loops alone, at one price or under one cap on what they store."""

    name: ClassVar[str] = "remat-loops"
    summary: ClassVar[str] = "Rewrites loops at one price."
    example: ClassVar[str] = "remat-loops{rate=0.0}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Cse, FreeConstants)

    rate: float = option(CHEAP, doc="Bytes that a second is worth.")
    cap: int = option(-1, doc="Most bytes to store in a block; -1 is no cap.")
    seed: int = option(-1, doc="Of a random choice of the plan's decisions; -1 takes all.")

    def plan(self, module: ir.Module, target: Target) -> LoopsPlan:
        rates = Rates(self.rate, self.rate)
        pricing = None if self.rate == CHEAP else Pricing(CPU_SPEED, rates)
        plans: list[ScanPlan] = []
        for block in walk.code_blocks(module.operation):
            if pricing is None or self.cap < 0:
                plans += BlockScans(block, 0).plan(pricing)
            else:
                within = plan_scans_budgeted(BlockScans(block, 0), pricing, self.cap)
                assert within is not None, "the cap is too low"
                plans += within
        if self.seed >= 0:
            plans = [part for n, plan in enumerate(plans) if (part := self._part(plan, n))]
        return LoopsPlan(tuple(plans))

    def _part(self, plan: ScanPlan, number: int) -> ScanPlan | None:
        draw, split = random.Random(self.seed), ScanDecisions(plan, number)
        return split.restricted_to([d.id for d in split.decisions if draw.random() < 0.6])

    def apply(self, plan: LoopsPlan) -> None:
        replaced = Replacements()
        for scan in plan.scans:
            apply_scan(scan, replaced)
        finish_scans(replaced)


def _described(plan: PairPlan) -> dict[str, object]:
    return {
        "trips": plan.pair.forward.trip_count,
        "freed_bytes": plan.freed_bytes,
        "rerun": plan.rerun,
        "stored": [str(value.type) for value, _ in plan.stored],
        "inner": [_described(inner) for inner in plan.inner],
    }


def spec_of(rate: float, cap: int = -1, seed: int = -1) -> str:
    return f"remat-loops{{rate={rate} cap={cap} seed={seed}}}"


def plans_of(lowered: Any, spec: str) -> list[dict[str, Any]]:
    return rewritten(lowered, spec)[1]["scans"]


def rewritten(lowered: Any, spec: str) -> tuple[ir.Module, dict[str, Any]]:
    module = clone_module(lowered.compiler_ir())
    return module, Pipeline.parse(spec).run(module, target=Target()).runs[-1].plan


def temp_bytes(lowered: Any, spec: str) -> int:
    compiled = lowered.compile(compiler_options={"hloom": spec})
    return int(compiled.memory_analysis().temp_size_in_bytes)
