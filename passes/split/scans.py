"""Scans under a bound: what forward loops stack for backward loops, and so what of it crosses.

A loop is one operation of the step: all that it stacks crosses, or all of it runs again. Between
these `remat`'s cut of the loops' bodies stacks what a number of bytes holds, and has the backward
bodies compute the rest. Loops that `remat` has rewritten before stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.device import DeviceView
from ..analysis.flops import operation_flops
from ..analysis.memory_model.targets import memory_rules
from ..analysis.pricing import Pricing, Rates
from ..framework.tables import Table
from ..framework.target import Target
from ..ir import walk
from ..ir.clone import clone_module
from ..ir.ops import facts_of
from ..recompute.plan import RematPlan, apply_plan
from ..recompute.scan.plan import BlockScans, plan_scans_budgeted
from ..recompute.tables import recompute_tables
from .boundary import PRICE_UNITS

_MIN_BYTES = 16 * 1024
"""Slices that take less stay as they are stacked, as in `remat`."""


@dataclass(frozen=True)
class LoopsAgain:
    """What backward loops compute again, so that forward loops stack less.

    Attributes:
      seconds: of the expensive work.
      flops: of the matrix products.
      tables: what is not stacked any more, and what is.
    """

    seconds: float = 0.0
    flops: float = 0.0
    tables: tuple[Table, ...] = ()


def with_stacks(
    code: ir.Module, target: Target, cap_bytes: int
) -> tuple[ir.Module, LoopsAgain] | None:
    """A copy of a step whose forward loops stack so many bytes at most, at the least added time.

    None where no loop can be changed, or none can stack so little.
    """
    copy = clone_module(code)
    block = walk.entry_function(copy).regions[0].blocks[0]
    device = DeviceView.of(copy, memory_rules(target))
    pricing = Pricing(target.speed, Rates(PRICE_UNITS, 0.0), sizes=device.sizes)
    plans = plan_scans_budgeted(BlockScans(block, _MIN_BYTES, device), pricing, cap_bytes)
    if not plans:
        return None
    runs = [
        (op, times) for plan in plans for op, times in plan.runs if facts_of(op.name).is_product
    ]
    again = LoopsAgain(
        sum(pricing.repeat_seconds(op) * times for op, times in runs),
        sum(operation_flops(op, device.sizes) * times for op, times in runs),
        recompute_tables((), plans),
    )
    apply_plan(RematPlan((), tuple(plans)))
    return copy, again
