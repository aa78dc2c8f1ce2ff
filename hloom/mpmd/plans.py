"""What `hloom.stages` has planned, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hloom.mpmd.places import Place
from hloom.mpmd.timeline import Timeline, held_bytes
from hloom.passes.framework.text import percent, pluralize, seconds, size
from hloom.passes.stages.programs import Direction, Stages

_LETTERS = {Direction.FORWARD: "F", Direction.BACKWARD: "B", Direction.WEIGHTS: "W"}
_WIDEST = 120
"""The columns of the picture of a schedule."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages of a step; its `str` is a page.

    Attributes:
      name: the loss's.
      schedule: its name.
      microbatches: how many there are.
      stages: the programs, and what crosses between them.
      timeline: the schedule, if all programs took equally long; all processes follow its order.
      timed: the same with the seconds that rooflines give each program.
      places: the devices of each stage.
    """

    name: str
    schedule: str
    microbatches: int
    stages: Stages
    timeline: Timeline
    timed: Timeline
    places: tuple[Place, ...]

    @property
    def bubble(self) -> float:
        """The share of their time in which stages wait, if all programs took equally long."""
        return self.timeline.bubble

    @property
    def live(self) -> tuple[int, ...]:
        """For each stage the most microbatches that it holds residuals of."""
        return self.timeline.live

    @property
    def held_bytes(self) -> tuple[int, ...]:
        """For each stage the most bytes of values that a device holds beside its programs."""
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
        """A row a stage, a column a second of programs that take one each."""
        width = max(2, *(len(task.what) for task in self.timeline.order)) + 1
        columns = min(int(self.timeline.end), _WIDEST // width)
        for number in range(self.stages.count):
            cells = [""] * columns
            for task in self.timeline.order:
                start = int(self.timeline.spans[task][0])
                if task.stage == number and start < columns:
                    cells[start] = task.what
            more = " ..." if columns < int(self.timeline.end) else ""
            line = "".join(cell.ljust(width) for cell in cells).rstrip() + more
            yield f"{number}: {line}"


def _aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (1,)) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
