"""What `split` decided: the boundary, told by the operations and lines that its values come of."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from ..framework.base import PlanBase
from ..framework.tables import Described, Fact, Kind, Table
from ..framework.text import percent, pluralize, size
from .boundary import Boundary
from .scans import LoopsAgain

DONE_AGAIN = "products done again"
"""The fact that is the share of the step's products that both programs do."""


@dataclass(frozen=True)
class SplitPlan(PlanBase):
    """The boundary of a step; None where it has none.

    Attributes:
      boundary: what crosses.
      module: the module that was planned.
      code: where the boundary's operations are: the module, or a copy of it that was rewritten.
      loops: what backward loops do again, so that less is stacked.
      refusal: why there is no boundary; empty where there is one, and where none is asked for.
    """

    boundary: Boundary | None = None
    module: ir.Module | None = None
    code: ir.Module | None = None
    loops: LoopsAgain = field(default_factory=LoopsAgain)
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
        return f"{count} of {size(self.boundary.bytes)} between the forward and backward programs"

    @property
    def added_work(self) -> float:
        """FLOPs of products that are done again, as a share of the step's."""
        if self.boundary is None or not (flops := self.boundary.halves.program.flops):
            return 0.0
        again = self.boundary.flops_again() + self.loops.flops
        # What loops do again is in the program's FLOPs by now.
        return again / (flops - self.loops.flops)

    def facts(self) -> tuple[Fact, ...]:
        if self.boundary is None:
            return ()
        program = self.boundary.halves.program
        read = self.boundary.read_again
        return (
            Fact("residuals", len(self.boundary.residuals)),
            Fact("bytes of residuals", self.boundary.bytes, Kind.BYTES),
            Fact("arguments read again", len(read)),
            Fact("bytes of arguments read again", sum(map(program.bytes_of, read)), Kind.BYTES),
            Fact(DONE_AGAIN, self.added_work, Kind.SHARE),
        )

    def tables(self) -> tuple[Table, ...]:
        if self.boundary is None:
            return ()
        program = self.boundary.halves.program
        crossing = _alike(
            Described.of(program.values[value], program.bytes_of(value))
            for value in self.boundary.residuals
        )
        rows = tuple((each.bytes * each.times, each) for each in crossing)
        repeated = _alike(
            Described.of(program.ops[position]) for position in self.boundary.repeated()
        )
        return (
            Table("Residuals", {"takes": Kind.BYTES, "value": Kind.VALUE}, rows),
            Table("Done again", {"operation": Kind.VALUE}, tuple((each,) for each in repeated)),
            *self.loops.tables,
        )


def _alike(described: Iterable[Described]) -> list[Described]:
    """Values of one line and type as one each, the largest first."""
    counts = Counter(replace(each, name="") for each in described)
    found = [replace(each, times=times) for each, times in counts.items()]
    return sorted(found, key=lambda each: -each.bytes * each.times)


def residual_names(values: Iterable[ir.Value]) -> list[str]:
    """A name for each value: its operation and the user's line, "dot_general model.py:25".

    Those of one name get a number, "dot_general model.py:25 #2".
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
