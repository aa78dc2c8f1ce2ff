"""What rewriting pairs of loops changes in the block around them, setting by setting.

The loops are rewritten on a scratch copy of the module, whose bodies are small. What counts around
them is what the bodies hold while they run, and how much one loop stacks for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis import walk
from hloom.passes.analysis.line import Line
from hloom.passes.analysis.liveness import inner_bytes
from hloom.passes.analysis.loop_pairs import LoopPair
from hloom.passes.analysis.loops import runs_of
from hloom.passes.analysis.shards import Shards
from hloom.passes.clone import clone_module
from hloom.passes.loop_edit import Replaced
from hloom.passes.remat.ladder import FINE, Ladder
from hloom.passes.remat.pricing import Pricing
from hloom.passes.remat.scan import ScanPlan, plan_scans
from hloom.passes.remat.scan_rewrite import apply_scan, finish_scans
from hloom.passes.remat.scan_within import bytes_kept_at, plan_scans_within


@dataclass(frozen=True)
class LoopEffect:
    """How one rewritten loop differs in the block around it.

    Attributes:
      inner_bytes: alive only while it runs.
      stacked_bytes: for a forward loop, what its backward loop is given of it.
      partner: for a forward loop, the number of its backward loop among the module's operations.
      seconds: for a forward loop, what the pair recomputes takes.
    """

    inner_bytes: int
    stacked_bytes: int = 0
    partner: int | None = None
    seconds: float = 0.0


class LoopEffects:
    """The effects of every setting on a module's pairs of loops."""

    def __init__(
        self,
        module: ir.Module,
        pairs: Sequence[LoopPair],
        ladder: Ladder,
        pricing: Pricing,
        shards: Shards,
        min_bytes: int,
    ) -> None:
        self.module, self.pairs, self.ladder = module, pairs, ladder
        self.pricing, self.shards, self.min_bytes = pricing, shards, min_bytes
        self._blocks = list(walk.code_blocks(module.operation))
        self._kept: dict[tuple[int, int], int] = {}
        self._effects: dict[int, dict[int, LoopEffect]] = {}

    def at(self, step: int) -> dict[int, LoopEffect]:
        """By the number of a loop among the module's operations, what its rewriting changes."""
        if not self.pairs:
            return {}
        if step not in self._effects:
            self._effects[step] = self._find(step)
        return self._effects[step]

    def plans(self, module: ir.Module, step: int) -> Iterator[ScanPlan]:
        """The plans of a step for the module, or a copy of it; pure."""
        if not self.pairs:
            return
        rung, fine = divmod(step, FINE)
        # Not the planner's own seconds: a copy's operations come and go.
        pricing = Pricing(self.pricing.speed, self.ladder.rates(rung))
        for number, block in enumerate(walk.code_blocks(module.operation)):
            within = None
            if fine and (cap_bytes := self._cap_bytes(number, rung, fine)) is not None:
                within = plan_scans_within(block, self.min_bytes, pricing, cap_bytes)
            yield from plan_scans(block, self.min_bytes, pricing) if within is None else within

    def _cap_bytes(self, number: int, rung: int, fine: int) -> int | None:
        """What the loops of a block may keep between two rungs; None where that is the same."""
        less, more = self._kept_bytes(number, rung), self._kept_bytes(number, rung + 1)
        return less + (more - less) * fine // FINE if less < more else None

    def _kept_bytes(self, number: int, rung: int) -> int:
        """What the loops of a block keep for their backward loops at a rung."""
        key = number, rung
        if key not in self._kept:
            pricing = Pricing(self.pricing.speed, self.ladder.rates(rung))
            self._kept[key] = bytes_kept_at(self._blocks[number], self.min_bytes, pricing)
        return self._kept[key]

    def _find(self, step: int) -> dict[int, LoopEffect]:
        scratch = clone_module(self.module)
        shards, number = self.shards.on(self.module, scratch), _numbers(scratch)
        effects: dict[int, LoopEffect] = {}
        with scratch.context, ir.Location.unknown():
            plans = list(self.plans(scratch, step))
            # Rewriting changes how operations hash, so all that is asked of the old ones is first.
            seconds = [self._seconds(plan) for plan in plans]
            loops = [
                (number[plan.pair.forward.op], number[plan.pair.backward.op]) for plan in plans
            ]
            replaced = Replaced()
            for plan in plans:
                apply_scan(plan, replaced)
            rebuilt = [
                (replaced.op(plan.pair.forward.op), replaced.op(plan.pair.backward.op))
                for plan in plans
            ]
            finish_scans(replaced)
            effects_of = zip(rebuilt, seconds, loops, strict=True)
            for (forward, backward), added_s, (first, second) in effects_of:
                effects[first] = LoopEffect(
                    inner_bytes=inner_bytes(forward, shards),
                    stacked_bytes=_linked_bytes(forward, backward, shards),
                    partner=second,
                    seconds=added_s,
                )
                effects[second] = LoopEffect(inner_bytes(backward, shards))
        return effects

    def _seconds(self, plan: ScanPlan) -> float:
        """Seconds that a pair of loops takes for what it recomputes."""
        pricing = Pricing(self.pricing.speed)
        once = sum(pricing.seconds(op) * times for op, times in plan.runs)
        return once * runs_of(plan.pair.backward.op.block)


def _numbers(module: ir.Module) -> dict[ir.Operation, int]:
    return {op: number for number, op in enumerate(walk.operations(module.operation))}


def _linked_bytes(forward: ir.Operation, backward: ir.Operation, shards: Shards) -> int:
    """Bytes of what one loop makes and another is given."""
    results = set(forward.results)
    linked = (value for value in dict.fromkeys(backward.operands) if value in results)
    return sum(shards.bytes_of(value) or 0 for value in linked)


def put_stacks(line: Line, writer: int, reader: int, stacked_bytes: int) -> None:
    """Puts one stack of so many bytes in the place of those that one loop writes for another.

    ``writer`` and ``reader`` are the positions of the two loops in the line.
    """
    for value in line.makes[writer]:
        if value in line.reads[reader]:
            line.sizes[value] = 0
    start, stack = len(line.sizes), len(line.sizes) + 1
    line.sizes += [0, stacked_bytes]
    line.given |= {start}
    made = len(line.makes[writer])
    line.reads[writer] = [*line.reads[writer][:made], start, *line.reads[writer][made:]]
    line.makes[writer] = [*line.makes[writer], stack]
    line.reads[reader] = [*line.reads[reader], stack]
