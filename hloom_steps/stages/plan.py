"""The plan of `stages`: the stages, the values that cross between them, and the bytes that each
holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.framework.base import PlanBase
from hloom.passes.framework.tables import Fact, Kind, Table
from hloom.passes.framework.text import percent, pluralize, size
from hloom_steps.stages.programs import Direction, StagePrograms

CROSSING = "bytes that cross"
"""The name of the fact with the bytes that stages send each other in one microbatch."""

BALANCE = "longest stage over the mean"
"""The name of the fact with the balance of the stages' times."""


@dataclass(frozen=True)
class StagesPlan(PlanBase):
    """The stages of a step; None where it has none.

    Attributes:
      stages: the programs.
      module: the module that was planned.
      refusal: why no stages exist; empty where they exist, and where none are requested.
      more: tables of the driver that runs the programs, e.g. their schedule.
    """

    stages: StagePrograms | None = None
    module: ir.Module | None = None
    refusal: str = ""
    more: tuple[Table, ...] = ()

    @property
    def empty(self) -> bool:
        return self.stages is None

    def summary(self) -> str:
        stages = self.stages
        if stages is None:
            return "nothing to cut"
        return f"{self.effect()}, the longest {percent(stages.balance - 1)} above the mean"

    def effect(self) -> str:
        """Summarizes the stages and the bytes that cross."""
        stages = self.stages
        if stages is None:
            return "no stages"
        crossing = pluralize(len(stages.transfers), "value")
        sent = size(self._sent(stages))
        return f"{pluralize(stages.count, 'stage')}; {crossing} of {sent} cross"

    @staticmethod
    def _sent(stages: StagePrograms) -> int:
        return sum(stages.values[each.value].bytes for each in stages.transfers)

    def facts(self) -> tuple[Fact, ...]:
        stages = self.stages
        if stages is None:
            return ()
        return (
            Fact("stages", stages.count),
            Fact("values that cross", len(stages.transfers)),
            Fact(CROSSING, self._sent(stages), Kind.BYTES),
            Fact(BALANCE, round(stages.balance, 3)),
        )

    def tables(self) -> tuple[Table, ...]:
        stages = self.stages
        if stages is None:
            return ()
        own = _crossing(stages), _residuals(stages), _shared(stages)
        return (_stages(stages), *self.more, *own)


def _stages(stages: StagePrograms) -> Table:
    columns = {
        "stage": Kind.COUNT,
        "forward": Kind.SECONDS,
        "backward": Kind.SECONDS,
        "gradients of weights": Kind.SECONDS,
        "residuals": Kind.BYTES,
        "parameters": Kind.BYTES,
    }
    rows = []
    for stage in range(stages.count):
        found = {program.kind: program.seconds for program in stages.of_stage(stage)}
        seconds = [found.get(kind) for kind in Direction]
        held = stages.residual_bytes(stage), stages.parameter_bytes(stage)
        rows.append((stage, *seconds, *held))
    return Table("Stages", columns, tuple(rows), "Of one microbatch, on one device of the stage.")


def _crossing(stages: StagePrograms) -> Table:
    columns = {
        "from": Kind.COUNT,
        "to": Kind.COUNT,
        "pass": Kind.TEXT,
        "takes": Kind.BYTES,
        "value": Kind.VALUE,
    }
    rows = tuple(
        (each.source, each.target, str(each.kind), value.bytes, value.described)
        for each in stages.transfers
        if (value := stages.values[each.value])
    )
    return Table("What crosses", columns, rows)


def _residuals(stages: StagePrograms) -> Table:
    columns = {"stage": Kind.COUNT, "takes": Kind.BYTES, "value": Kind.VALUE}
    rows = tuple(
        (stage, stages.values[number].bytes, stages.values[number].described)
        for stage in range(stages.count)
        for number in _largest(stages, stages.residuals(stage))
    )
    return Table("Residuals", columns, rows)


def _largest(stages: StagePrograms, numbers: Iterable[int]) -> list[int]:
    return sorted(numbers, key=lambda number: (-stages.values[number].bytes, number))


def _shared(stages: StagePrograms) -> Table:
    rows = tuple(
        (leaf, ", ".join(str(stage) for stage in _holders(stages, leaf))) for leaf in stages.shared
    )
    columns = {"argument": Kind.COUNT, "held by stages": Kind.TEXT}
    return Table("Parameters that several stages hold", columns, rows)


def _holders(stages: StagePrograms, leaf: int) -> list[int]:
    return [
        stage
        for stage in range(stages.count)
        if any(each.leaf == leaf for each in stages.parameters(stage))
    ]
