"""The printable plan of `hloom.stages`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hloom.passes.framework.tables import Cell, Fact, Kind, Statement, Table
from hloom.passes.framework.text import percent, pluralize, seconds, size
from hloom_steps.mpmd.pictures import drawn, planned_columns
from hloom_steps.mpmd.places import StagePlace
from hloom_steps.mpmd.schedules import LETTERS
from hloom_steps.mpmd.timeline import Timeline, held_bytes
from hloom_steps.stages.programs import (
    Batch,
    Cotangent,
    Direction,
    Gradient,
    Parameter,
    StageProgram,
    StagePrograms,
    StageValue,
)


@dataclass(frozen=True, eq=False)
class StagedPlan:
    """The plan of a step's stages; its `str` is a page.

    Attributes:
      name: the loss's name.
      schedule: the schedule's name.
      microbatches: the number of microbatches.
      stages: the programs, and the values that cross between them.
      timeline: the schedule with equal seconds for all programs; all processes follow its order.
      timed: the schedule with each program's seconds by rooflines.
      places: the devices of each stage.
    """

    name: str
    schedule: str
    microbatches: int
    stages: StagePrograms
    timeline: Timeline
    timed: Timeline
    places: tuple[StagePlace, ...]

    @property
    def bubble(self) -> float:
        """Returns the share of time that stages wait, if all programs took equally long."""
        return self.timeline.bubble

    @property
    def live(self) -> tuple[int, ...]:
        """Returns, for each stage, the most microbatches of which it holds residuals at once."""
        return self.timeline.live

    @property
    def held_bytes(self) -> tuple[int, ...]:
        """Returns, for each stage, the peak of bytes in values that a device holds beside its
        programs."""
        return held_bytes(self.stages, self.timeline)

    def __str__(self) -> str:
        parts = self._head(), self._stages(), self._crossing(), self._drawn()
        return "\n\n".join("\n".join(part) for part in parts)

    def _head(self) -> Iterator[str]:
        yield (
            f"{self.name}: {pluralize(self.stages.count, 'stage')}, "
            f"{pluralize(self.microbatches, 'microbatch').replace('batchs', 'batches')}, "
            f"{self.schedule}"
        )
        yield (
            f"by rooflines a step takes {seconds(float(self.timed.end))}, of which stages wait "
            f"{percent(self.timed.bubble)}; were all programs equally long {percent(self.bubble)}"
        )
        yield f"the longest stage takes {self.stages.balance:.2f} of the mean"

    def _stages(self) -> list[str]:
        titles = (
            "stage", "device", "forward", "backward", "weights", "parameters", "residuals", "live",
            "held",
        )  # fmt: skip
        rows: list[tuple[str, ...]] = [titles]
        for number, place in enumerate(self.places):
            took = {each.kind: each.seconds for each in self.stages.of_stage(number)}
            times = [seconds(took[kind]) if kind in took else "" for kind in Direction]
            rows.append((
                str(number), str(place), *times, size(self.stages.parameter_bytes(number)),
                size(self.stages.residual_bytes(number)), str(self.live[number]),
                size(self.held_bytes[number]),
            ))  # fmt: skip
        return _aligned(rows)

    def _crossing(self) -> list[str]:
        rows = [("from", "to", "pass", "takes", "what crosses, of one microbatch")]
        for each in self.stages.transfers:
            value = self.stages.values[each.value]
            stages = str(each.source), str(each.target)
            rows.append((*stages, str(each.kind), size(value.bytes), value.name))
        return _aligned(rows, left=(2, 4))

    def _drawn(self) -> Iterator[str]:
        """Yields one row per stage and one column per second, for programs of one second each."""
        rows = drawn(planned_columns(self.timeline), self.stages.count)
        yield from (f"{number}: {row}" for number, row in enumerate(rows))


def schedule_table(schedule: str, stages: StagePrograms, timeline: Timeline) -> Table:
    """Returns the drawing of a schedule, for the plan of the stages.

    Args:
      schedule: the schedule's name.
      stages: the programs.
      timeline: the schedule with equal seconds for all programs.
    """
    kinds = {program.kind for program in stages.programs}
    letters = ", ".join(f"{LETTERS[kind]} {kind}" for kind in Direction if kind in kinds)
    text = (
        f"{schedule}, by microbatch: {letters}. Were all programs equally long, a stage would wait "
        f"for {percent(timeline.bubble)} of a step."
    )
    columns = {"stage": Kind.COUNT, "programs, from left to right": Kind.DRAWING}
    rows = enumerate(drawn(planned_columns(timeline), stages.count))
    return Table("Schedule", columns, tuple(rows), text)


def told_of(
    program: StageProgram, stages: StagePrograms, paths: Mapping[int, str], place: StagePlace
) -> dict[str, object]:
    """Describes a program, its arguments and results, as facts and tables that `json.dumps`
    takes."""
    here, readers = program.stage, stages.readers
    reads: list[tuple[Cell, ...]] = []
    for source, size_bytes in zip(program.reads, program.read_bytes, strict=True):
        if isinstance(source, StageValue):
            value, maker = stages.values[source.number], stages.makers[source.number]
            reads.append((value.described, size_bytes, maker.name))
        elif isinstance(source, Cotangent):
            reads.append(("the cotangent of the loss, which is 1", size_bytes, None))
        else:
            what = "parameters" if isinstance(source, Parameter) else "the batch"
            reads.append((_path(source, paths), size_bytes, what))
    gives: list[tuple[Cell, ...]] = []
    for given in program.gives:
        if isinstance(given, StageValue):
            value = stages.values[given.number]
            gives.append((value.described, value.bytes, ", ".join(readers[given.number])))
        elif isinstance(given, Gradient):
            gives.append((f"the gradient of {_path(given.parameter, paths)}", None, "sums"))
        else:
            gives.append((f"output {given.number}", None, "the step's outputs"))
    columns = {"value": Kind.VALUE, "takes": Kind.BYTES}
    facts = (
        Fact("stage", here),
        Fact("of", stages.count),
        Fact("direction", str(program.kind), Kind.TEXT),
        Fact("on", str(place), Kind.TEXT),
        Fact("takes, by rooflines", program.seconds, Kind.SECONDS),
    )
    tables = (
        Table("Reads", {**columns, "of": Kind.TEXT}, tuple(reads), "Of one microbatch."),
        Table("Gives", {**columns, "to": Kind.TEXT}, tuple(gives)),
    )
    return Statement(facts, tables).to_json()


def _path(source: Parameter | Batch, paths: Mapping[int, str]) -> str:
    path = paths.get(source.leaf, f"argument {source.leaf}")
    rows = isinstance(source, Parameter) and source.start is not None
    return f"{path}[{source.start}:{source.stop}]" if rows else path  # type: ignore[union-attr]


def _aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (1,)) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
