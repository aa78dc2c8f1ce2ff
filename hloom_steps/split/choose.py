"""Selects the boundary of a step: the fewest bytes, or the least added time within a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.flops import operation_flops
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.pricing import Pricing, Rates
from hloom.passes.analysis.program import Program
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.ops import facts_of
from hloom.passes.recompute.plan import RematPlan, apply_plan
from hloom.passes.recompute.scan.plan import BlockScans, plan_scans_budgeted
from hloom.passes.recompute.tables import recompute_tables
from hloom.passes.remat import Remat
from hloom_steps.split.backward_loops import divide_loops
from hloom_steps.split.boundary import (
    PRICE_UNITS,
    Boundary,
    Halves,
    Marks,
    SplitError,
    about_floor,
    bounded_boundary,
    cheapest_boundary,
    least_boundary,
)
from hloom_steps.split.divide import Division, divided
from hloom_steps.split.merge import merged
from hloom_steps.split.plan import LoopsAgain, SplitPlan

_MOST_CAPS = 4
"""The most bounds on stacks that are tried: other crossing bytes are known only after the loops are
rewritten."""


@dataclass(frozen=True)
class SplitCandidate:
    """A boundary, the module of its operations, and its cost.

    Attributes:
      boundary: the values that cross.
      code: the module of its operations.
      again: selects the same boundary after backward loops are divided.
      loops: the work that backward loops recompute for it.
      seconds: all recomputed expensive work.
    """

    boundary: Boundary
    code: ir.Module
    again: Callable[[Halves], Boundary | None]
    loops: LoopsAgain = field(default_factory=LoopsAgain)
    seconds: float = 0.0


class Step:
    """Selects the split of a step whose cotangents are marked."""

    def __init__(
        self,
        module: ir.Module,
        target: Target,
        marks: Marks,
    ) -> None:
        """Raises SplitError."""
        self._module, self._target, self._marks = module, target, marks
        self._code, self._halves = self._merged(module)

    def cheapest(self) -> SplitPlan:
        """Returns the plan with the fewest bytes that recomputes no expensive operation. Raises
        SplitError."""
        return self._plan(self._cheapest(self._halves, self._code))

    def bounded(self, limit_bytes: int) -> SplitPlan:
        """Returns the plan with the fewest recomputed seconds within `limit_bytes`. Raises
        SplitError below the floor."""
        cheapest = self._cheapest(self._halves, self._code)
        if cheapest.boundary.bytes <= limit_bytes:
            return self._plan(cheapest)
        found = [*self._with_stacks(limit_bytes)]
        if not found or min(each.seconds for each in found):
            found += self._bounded(limit_bytes, self._code, self._halves, LoopsAgain())
        if not found:
            least = least_boundary(self._halves)
            raise SplitError(about_floor(limit_bytes, least), floor_bytes=least.bytes)
        return self._plan(min(found, key=lambda each: (each.seconds, each.boundary.bytes)))

    def _with_stacks(self, limit_bytes: int) -> Iterator[SplitCandidate]:
        """Yields candidates whose loops stack fewer bytes."""
        cap_bytes = limit_bytes
        for _ in range(_MOST_CAPS):
            written = None if cap_bytes < 0 else with_stacks(self._code, self._target, cap_bytes)
            if written is None:
                return
            code, loops = written
            code, halves = self._merged(code)
            cheapest = self._cheapest(halves, code, loops)
            if cheapest.boundary.bytes <= limit_bytes:
                yield cheapest
                return
            yield from self._bounded(limit_bytes, code, halves, loops)
            cap_bytes -= cheapest.boundary.bytes - limit_bytes

    def _cheapest(
        self, halves: Halves, code: ir.Module, loops: LoopsAgain | None = None
    ) -> SplitCandidate:
        loops = loops or LoopsAgain()
        boundary = cheapest_boundary(halves)
        return SplitCandidate(boundary, code, cheapest_boundary, loops, loops.seconds)

    def _bounded(
        self, limit_bytes: int, code: ir.Module, halves: Halves, loops: LoopsAgain
    ) -> Iterator[SplitCandidate]:
        def pricing(halves: Halves) -> Pricing:
            return Pricing(self._target.speed, sizes=halves.program.device.sizes)

        def bounded(halves: Halves) -> Boundary | None:
            return bounded_boundary(halves, limit_bytes, pricing(halves))

        boundary = bounded(halves)
        if boundary is not None:
            seconds = loops.seconds + boundary.seconds_again(pricing(halves))
            yield SplitCandidate(boundary, code, bounded, loops, seconds)

    def _merged(self, code: ir.Module) -> tuple[ir.Module, Halves]:
        """Returns the module without barriers that keep equal work of its forward half apart, and
        its halves."""
        program = self._read(code)
        without = merged(code, program, self._marks, self._target)
        if without is not code:
            program = self._read(without)
        return without, Halves.of(program, self._marks)

    def _read(self, code: ir.Module) -> Program:
        return Program.of(code, DeviceView.of(code, memory_rules(self._target)))

    def _plan(self, chosen: SplitCandidate) -> SplitPlan:
        if not self._marks.weights:
            return SplitPlan(
                chosen.boundary, self._module, chosen.code, chosen.loops, chosen.seconds
            )
        code = clone_module(chosen.code)
        halves = Halves.of(self._read(code), self._marks)
        program = halves.program
        divide_loops(
            program, halves.backward, halves.of_inputs, lambda value: _is_free(halves, value)
        )
        boundary = chosen.again(Halves.of(self._read(code), self._marks))
        assert boundary is not None  # the loops read the same values of the forward half
        return SplitPlan(
            boundary, self._module, code, chosen.loops, chosen.seconds, _division(boundary)
        )


def _is_free(halves: Halves, value: ir.Value) -> bool:
    """Whether all programs have a value: an argument of the caller, or computed from constants
    alone."""
    number = halves.program.index.get(value)
    if number is None:
        return False
    return halves.is_callers(number) or halves.program.constant_derived[number]


def _division(boundary: Boundary) -> Division:
    """Divides the backward program in two."""
    halves = boundary.halves

    def held_bytes(value: int) -> int:
        return 0 if halves.is_callers(value) else halves.program.bytes_of(value)

    return divided(
        halves.program, boundary.backward, halves.of_inputs, halves.of_weights, held_bytes
    )


MIN_BYTES: int = Remat().min_bytes
"""The size below which slices stay stacked, and values are saved as they are, as in `remat`."""


def with_stacks(
    code: ir.Module, target: Target, cap_bytes: int
) -> tuple[ir.Module, LoopsAgain] | None:
    """Returns a copy of a step whose forward loops stack at most `cap_bytes`, at the least added
    time.

    A loop is one operation of the step: all its stacks cross, or the whole loop is recomputed.
    Between these two, `remat`'s cut of the loops' bodies stacks what fits a number of bytes, and
    the backward bodies recompute the rest. Loops that `remat` has rewritten before do not change.
    None where no loop can be changed, or none can stack so little.
    """
    copy = clone_module(code)
    block = walk.entry_function(copy).regions[0].blocks[0]
    device = DeviceView.of(copy, memory_rules(target))
    pricing = Pricing(target.speed, Rates(PRICE_UNITS, 0.0), sizes=device.sizes)
    plans = plan_scans_budgeted(BlockScans(block, MIN_BYTES, device), pricing, cap_bytes)
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
