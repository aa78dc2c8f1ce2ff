"""A pass that gives each part of a split scan a plan of its own, at a price of the grid."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jax.extend.mlir import ir

from hloom.passes.cse import Cse
from hloom.passes.framework.base import Pass
from hloom.passes.framework.options import option
from hloom.passes.framework.target import Target
from hloom.passes.free_constants import FreeConstants
from hloom.passes.inline import Inline
from hloom.passes.planner.candidates import PRICES, STEPS
from hloom.passes.planner.model import Model
from hloom.passes.recompute.plan import RematPlan, apply_plan
from hloom.passes.remat import Remat


@dataclasses.dataclass(frozen=True)
class ForcePrices(Pass):
    """Plans the first and the last pair of loops at one price each."""

    name: ClassVar[str] = "force-prices"
    summary: ClassVar[str] = "plan the first and the last pair of loops at one price each"
    example: ClassVar[str] = "split-loop,force-prices{first=18 last=21}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Cse, FreeConstants)

    first: int = option(0, doc="price of the first pair", minimum=0, maximum=PRICES - 1)
    last: int = option(0, doc="price of the last pair", minimum=0, maximum=PRICES - 1)

    def plan(self, module: ir.Module, target: Target) -> RematPlan:
        model = Model(module, target, Remat().min_bytes)
        first, *_ = model.loops.plans(self.first * STEPS)
        *_, last = model.loops.plans(self.last * STEPS)
        return RematPlan((), (first, last))

    def apply(self, plan: RematPlan) -> None:
        apply_plan(plan)
