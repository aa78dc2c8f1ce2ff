"""The plan of `split`: the boundary, reported by the operations and lines that its values come
from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from hloom.passes.framework.base import PlanBase
from hloom.passes.framework.tables import Described, Fact, Kind, Table
from hloom.passes.framework.text import percent, pluralize, size
from hloom_steps.split.boundary import Boundary
from hloom_steps.split.divide import Division

DONE_AGAIN = "products done again"
"""The name of the fact with the share of the step's products that both programs compute."""

ADDED_SECONDS = "time of work done again"
"""The name of the fact with the time of all recomputed expensive work, by rooflines."""

CROSSING = "bytes of residuals"
"""The name of the fact with the bytes that cross on one device."""


@dataclass(frozen=True)
class LoopsAgain:
    """The work that backward loops recompute so that forward loops stack less.

    Attributes:
      seconds: the time of the expensive work.
      flops: the FLOPs of the matrix products.
      tables: the values that are no longer stacked, and those that are.
    """

    seconds: float = 0.0
    flops: float = 0.0
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class SplitPlan(PlanBase):
    """The boundary of a step; None where it has none.

    Attributes:
      boundary: the values that cross.
      module: the module that was planned.
      code: the module of the boundary's operations: the planned one, or a rewritten copy.
      loops: the work that backward loops recompute so that less is stacked.
      seconds: the time of all recomputed expensive work.
      division: the two parts of the backward pass, where gradients of weights have a function of
        their own.
      refusal: why no boundary exists; empty where one exists, and where none is requested.
    """

    boundary: Boundary | None = None
    module: ir.Module | None = None
    code: ir.Module | None = None
    loops: LoopsAgain = field(default_factory=LoopsAgain)
    seconds: float = 0.0
    division: Division | None = None
    refusal: str = ""

    @property
    def empty(self) -> bool:
        return self.boundary is None

    def summary(self) -> str:
        if self.boundary is None:
            return "nothing to split"
        work = self.added_work
        again = f", {percent(work)} of the products done again" if work else ""
        return f"{self.effect()}{again}"

    def effect(self) -> str:
        if self.boundary is None:
            return ""
        count = pluralize(len(self.boundary.residuals), "residual")
        told = f"{count} of {size(self.boundary.bytes)} between the forward and backward programs"
        if self.division is not None:
            told += f", {size(self.held_bytes)} held for the gradients of weights"
        return told

    @property
    def handed(self) -> tuple[int, ...]:
        """Returns the values that the program of the inputs' gradients passes to that of the
        weights'."""
        return () if self.division is None else self.division.handed

    @property
    def kept(self) -> tuple[int, ...]:
        """Returns the residuals that the program of the weights' gradients still reads."""
        if self.boundary is None or self.division is None:
            return ()
        read = set(self.division.weights.read)
        return tuple(value for value in self.boundary.residuals if value in read)

    @property
    def held_bytes(self) -> int:
        """Returns the bytes of `handed` and `kept` on one device."""
        if self.boundary is None:
            return 0
        return sum(map(self.boundary.halves.program.bytes_of, (*self.kept, *self.handed)))

    @property
    def added_work(self) -> float:
        """Returns the FLOPs of recomputed products as a share of the step's."""
        if self.boundary is None or not (flops := self.boundary.halves.program.flops):
            return 0.0
        again = self.boundary.flops_again() + self.loops.flops
        # The program's FLOPs already include the work that loops recompute.
        return again / (flops - self.loops.flops)

    def facts(self) -> tuple[Fact, ...]:
        if self.boundary is None:
            return ()
        program = self.boundary.halves.program
        read = self.boundary.read_again
        return (
            Fact("residuals", len(self.boundary.residuals)),
            Fact(CROSSING, self.boundary.bytes, Kind.BYTES),
            Fact("arguments read again", len(read)),
            Fact("bytes of arguments read again", sum(map(program.bytes_of, read)), Kind.BYTES),
            Fact(DONE_AGAIN, self.added_work, Kind.SHARE),
            Fact(ADDED_SECONDS, self.seconds, Kind.SECONDS),
            *self._facts_of_weights(),
        )

    def _facts_of_weights(self) -> tuple[Fact, ...]:
        if self.boundary is None or self.division is None:
            return ()
        bytes_of = self.boundary.halves.program.bytes_of
        kept, handed = (sum(map(bytes_of, each)) for each in (self.kept, self.handed))
        return (
            Fact("bytes of residuals for gradients of weights", kept, Kind.BYTES),
            Fact("bytes handed to gradients of weights", handed, Kind.BYTES),
        )

    def tables(self) -> tuple[Table, ...]:
        if self.boundary is None:
            return ()
        program = self.boundary.halves.program
        repeated = _alike(
            Described.of(program.ops[position]) for position in self.boundary.repeated()
        )
        return (
            self._crossing("Residuals", self.boundary.residuals),
            self._crossing("Residuals for gradients of weights", self.kept),
            self._crossing("Handed to gradients of weights", self.handed),
            Table("Done again", {"operation": Kind.VALUE}, tuple((each,) for each in repeated)),
            *self.loops.tables,
        )

    def _crossing(self, title: str, values: Iterable[int]) -> Table:
        assert self.boundary is not None
        program = self.boundary.halves.program
        crossing = _alike(
            Described.of(program.values[value], program.bytes_of(value)) for value in values
        )
        rows = tuple((each.bytes * each.times, each) for each in crossing)
        return Table(title, {"takes": Kind.BYTES, "value": Kind.VALUE}, rows)


def _alike(described: Iterable[Described]) -> list[Described]:
    """Groups values of the same line and type, the largest group first."""
    counts = Counter(replace(each, name="") for each in described)
    found = [replace(each, times=times) for each, times in counts.items()]
    return sorted(found, key=lambda each: -each.bytes * each.times)


def residual_names(values: Iterable[ir.Value]) -> list[str]:
    """Returns a name for each value: its operation and the user's line, "dot_general model.py:25".

    Equal names get a number, "dot_general model.py:25 #2".
    """
    seen = Counter[str]()
    names = []
    for value in values:
        what = Described.of(value)
        line = os.path.basename(what.source.line)
        name = " ".join(filter(None, (what.operation.rpartition(".")[2], line)))
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return names
