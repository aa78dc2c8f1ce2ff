"""Selects the boundary of a step: the fewest bytes, or the least added time within a bound."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..analysis.device import DeviceView
from ..analysis.memory_model.targets import memory_rules
from ..analysis.pricing import Pricing
from ..analysis.program import Program
from ..framework.target import Target
from .boundary import (
    Boundary,
    Halves,
    SplitError,
    about_floor,
    bounded_boundary,
    cheapest_boundary,
    least_boundary,
)
from .merge import merged
from .plan import SplitPlan
from .scans import LoopsAgain, with_stacks

_MOST_CAPS = 4
"""Bounds on stacks that are tried: what else crosses is known once the loops are written."""


@dataclass(frozen=True)
class Candidate:
    """A boundary, where its operations are, and what it costs.

    Attributes:
      boundary: what crosses.
      code: the module that its operations are in.
      loops: what backward loops do again for it.
      seconds: the expensive work that is done again, in all.
    """

    boundary: Boundary
    code: ir.Module
    loops: LoopsAgain = field(default_factory=LoopsAgain)
    seconds: float = 0.0


class Step:
    """A step whose cotangents are known, to be split."""

    def __init__(
        self,
        module: ir.Module,
        target: Target,
        cotangents: Collection[int],
        gradients: Collection[int],
    ) -> None:
        """The numbers are those of its arguments and results. Raises SplitError."""
        self._module, self._target = module, target
        self._cotangents, self._gradients = cotangents, gradients
        self._code, self._halves = self._merged(module)

    def cheapest(self) -> SplitPlan:
        """The fewest bytes with no expensive operation run again. Raises SplitError."""
        return self._plan(Candidate(cheapest_boundary(self._halves), self._code))

    def bounded(self, limit_bytes: int) -> SplitPlan:
        """The least expensive work again with so many bytes. Raises SplitError below the floor."""
        cheapest = cheapest_boundary(self._halves)
        if cheapest.bytes <= limit_bytes:
            return self._plan(Candidate(cheapest, self._code))
        found = [*self._with_stacks(limit_bytes)]
        if not found or min(each.seconds for each in found):
            found += self._bounded(limit_bytes, self._code, self._halves, LoopsAgain())
        if not found:
            raise SplitError(about_floor(limit_bytes, least_boundary(self._halves)))
        return self._plan(min(found, key=lambda each: (each.seconds, each.boundary.bytes)))

    def _with_stacks(self, limit_bytes: int) -> Iterator[Candidate]:
        """Candidates whose loops stack less."""
        cap_bytes = limit_bytes
        for _ in range(_MOST_CAPS):
            written = None if cap_bytes < 0 else with_stacks(self._code, self._target, cap_bytes)
            if written is None:
                return
            code, loops = written
            code, halves = self._merged(code)
            boundary = cheapest_boundary(halves)
            if boundary.bytes <= limit_bytes:
                yield Candidate(boundary, code, loops, loops.seconds)
                return
            yield from self._bounded(limit_bytes, code, halves, loops)
            cap_bytes -= boundary.bytes - limit_bytes

    def _bounded(
        self, limit_bytes: int, code: ir.Module, halves: Halves, loops: LoopsAgain
    ) -> Iterator[Candidate]:
        pricing = Pricing(self._target.speed, sizes=halves.program.device.sizes)
        boundary = bounded_boundary(halves, limit_bytes, pricing)
        if boundary is not None:
            seconds = loops.seconds + boundary.seconds_again(pricing)
            yield Candidate(boundary, code, loops, seconds)

    def _merged(self, code: ir.Module) -> tuple[ir.Module, Halves]:
        """The module without what keeps equal work of its forward half apart, and its halves."""
        program = self._read(code)
        without = merged(code, program, self._cotangents, self._gradients, self._target)
        if without is not code:
            program = self._read(without)
        return without, Halves.of(program, self._cotangents, self._gradients)

    def _read(self, code: ir.Module) -> Program:
        return Program.of(code, DeviceView.of(code, memory_rules(self._target)))

    def _plan(self, chosen: Candidate) -> SplitPlan:
        return SplitPlan(chosen.boundary, self._module, chosen.code, chosen.loops)
