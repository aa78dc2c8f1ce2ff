"""What each candidate's rewritten loops change in the block around them.

The loops are rewritten in a scratch copy of the module. Two figures matter in the block around
them: the memory inside the loops while they run, and the bytes that one loop stacks for the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.loops.counted import runs_of
from hloom.passes.analysis.memory_model.trace import OpTrace
from hloom.passes.analysis.memory_model.tracer import inner_bytes
from hloom.passes.analysis.shards import Shards
from hloom.passes.ir import walk
from hloom.passes.ir.clone import IRMapping, clone_module
from hloom.passes.ir.while_rewriter import Replacements
from hloom.passes.remat.budget.price_grid import STEPS, PriceGrid
from hloom.passes.remat.budget.pricing import Pricing
from hloom.passes.remat.scan.budgeted import bytes_kept_at, plan_scans_budgeted
from hloom.passes.remat.scan.plan import BlockScans, ScanPlan
from hloom.passes.remat.scan.rewrite import apply_scan, finish_scans


@dataclass(frozen=True)
class LoopEffect:
    """The effect of one rewritten loop on the block around it.

    Attributes:
      inner_bytes: memory that is live only while the loop runs.
      stacked_bytes: for a forward loop, the bytes of its results that its backward loop reads.
      partner: for a forward loop, the number of its backward loop among the module's operations.
      seconds: for a forward loop, the weighted time of what the pair recomputes.
    """

    inner_bytes: int
    stacked_bytes: int = 0
    partner: int | None = None
    seconds: float = 0.0


class LoopEffects:
    """The effects of every price on a module's pairs of loops, cached."""

    def __init__(
        self,
        module: ir.Module,
        number: Mapping[Hashable, int],
        scans: Sequence[BlockScans],
        price_grid: PriceGrid,
        pricing: Pricing,
        shards: Shards,
    ) -> None:
        """``number`` numbers the module's operations, by ``walk.key``."""
        self.module, self.number, self.scans = module, number, scans
        self.price_grid, self.pricing, self.shards = price_grid, pricing, shards
        self._kept: dict[tuple[int, int], int] = {}
        self._plans: dict[int, tuple[ScanPlan, ...]] = {}
        self._effects: dict[tuple[ScanPlan, ...], dict[int, LoopEffect]] = {}

    def at(self, price: int) -> Mapping[int, LoopEffect]:
        """By the number of a loop among the module's operations, its effect."""
        plans = self.plans(price)
        if plans not in self._effects:
            self._effects[plans] = self._find(plans) if plans else {}
        return self._effects[plans]

    def plans(self, price: int) -> tuple[ScanPlan, ...]:
        """The plans of the pairs of loops at a price."""
        if price not in self._plans:
            self._plans[price] = tuple(
                plan
                for block, scans in enumerate(self.scans)
                if scans.bodies
                for plan in self._plan(block, scans, price)
            )
        return self._plans[price]

    def kept_bytes(self, price: int) -> dict[ir.Block, int]:
        """By block, the bytes that its loops stack at the grid price; quicker than effects."""
        return {
            scans.block: self._kept_bytes(number, price // STEPS)
            for number, scans in enumerate(self.scans)
            if scans.bodies
        }

    def _plan(self, block: int, scans: BlockScans, price: int) -> list[ScanPlan]:
        price_index, step = divmod(price, STEPS)
        pricing = self.pricing.at(self.price_grid.rates(price_index))
        within = None
        if step and (cap_bytes := self._cap_bytes(block, price_index, step)) is not None:
            within = plan_scans_budgeted(scans, pricing, cap_bytes)
        return scans.plan(pricing) if within is None else within

    def _cap_bytes(self, block: int, price_index: int, step: int) -> int | None:
        """The cap on the stacks of a block's loops between two grid prices; None if these agree."""
        less, more = self._kept_bytes(block, price_index), self._kept_bytes(block, price_index + 1)
        return less + (more - less) * step // STEPS if less < more else None

    def _kept_bytes(self, block: int, price_index: int) -> int:
        """The bytes that the loops of a block stack at a grid price."""
        key = block, price_index
        if key not in self._kept:
            pricing = self.pricing.at(self.price_grid.rates(price_index))
            self._kept[key] = bytes_kept_at(self.scans[block], pricing)
        return self._kept[key]

    def _find(self, plans: tuple[ScanPlan, ...]) -> dict[int, LoopEffect]:
        scratch = clone_module(self.module)
        shards = self.shards.on(self.module, scratch)
        counterparts = IRMapping(self.number, scratch)
        effects: dict[int, LoopEffect] = {}
        with scratch.context, ir.Location.unknown():
            copies = [counterparts.of(plan) for plan in plans]
            replaced = Replacements()
            for copy in copies:
                apply_scan(copy, replaced)
            rebuilt = [
                (replaced.op(copy.pair.forward.op), replaced.op(copy.pair.backward.op))
                for copy in copies
            ]
            finish_scans(replaced)
            for plan, (forward, backward) in zip(plans, rebuilt, strict=True):
                first, second = (
                    self.number[walk.key(loop.op)]
                    for loop in (plan.pair.forward, plan.pair.backward)
                )
                effects[first] = LoopEffect(
                    inner_bytes=inner_bytes(forward, shards),
                    stacked_bytes=_linked_bytes(forward, backward, shards),
                    partner=second,
                    seconds=self._seconds(plan),
                )
                effects[second] = LoopEffect(inner_bytes(backward, shards))
        return effects

    def _seconds(self, plan: ScanPlan) -> float:
        """The weighted seconds of what a pair of loops recomputes."""
        once = sum(self.pricing.seconds(op) * times for op, times in plan.runs)
        return once * runs_of(plan.pair.backward.op.block)


def _linked_bytes(forward: ir.Operation, backward: ir.Operation, shards: Shards) -> int:
    """Bytes of the results of one loop that are operands of another."""
    results = set(forward.results)
    linked = (value for value in dict.fromkeys(backward.operands) if value in results)
    return sum(shards.bytes_of(value) or 0 for value in linked)


def put_stacks(trace: OpTrace, writer: int, reader: int, stacked_bytes: int) -> None:
    """Replaces the stacks that one loop writes for another by one of ``stacked_bytes``.

    ``writer`` and ``reader`` are the positions of the two loops in the trace.
    """
    for value in trace.makes[writer]:
        if value in trace.reads[reader]:
            trace.sizes[value] = 0
    start, stack = len(trace.sizes), len(trace.sizes) + 1
    trace.sizes += [0, stacked_bytes]
    trace.inputs |= {start}
    made = len(trace.makes[writer])
    trace.reads[writer] = [*trace.reads[writer][:made], start, *trace.reads[writer][made:]]
    trace.makes[writer] = [*trace.makes[writer], stack]
    trace.reads[reader] = [*trace.reads[reader], stack]
