"""Pipeline schedules as data: the tasks of each stage in order.

`gpipe` runs all forward programs, then all backward ones (Huang et al. 2019, arXiv:1811.06965).
`1f1b` alternates between them as soon as it can, so that a stage holds the residuals of few
microbatches (Narayanan et al. 2021, arXiv:2104.04473). `zero-bubble` is ZB-H1 (Qi et al. 2023,
arXiv:2401.10241): gradients of weights are computed where a stage would wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hloom.passes.framework.errors import did_you_mean
from hloom_steps.stages.programs import Direction

LETTERS = {Direction.FORWARD: "F", Direction.BACKWARD: "B", Direction.WEIGHTS: "W"}
"""The letters of programs in names of tasks."""


@dataclass(frozen=True)
class Task:
    """One program for one microbatch."""

    stage: int
    kind: Direction
    microbatch: int

    @property
    def what(self) -> str:
        """Returns its name on its stage, "F3"."""
        return f"{LETTERS[self.kind]}{self.microbatch}"

    def __str__(self) -> str:
        return f"{self.what}@{self.stage}"


Rows = tuple[tuple[Task, ...], ...]
"""The tasks of each stage."""


def rows_of(schedule: str, stages: int, microbatches: int) -> Rows:
    """Returns the tasks of each stage, in order, by a schedule of `SCHEDULES`."""
    row = SCHEDULES[schedule]
    return tuple(tuple(row(stage, stages, microbatches)) for stage in range(stages))


def check_schedule(schedule: object) -> str:
    """Returns the name of a schedule. Raises ValueError where it is unknown."""
    if isinstance(schedule, str) and schedule in SCHEDULES:
        return schedule
    hint = did_you_mean(schedule, SCHEDULES) if isinstance(schedule, str) else ""
    known = ", ".join(repr(name) for name in SCHEDULES)
    raise ValueError(f"hloom.stages: schedule={schedule!r}: wanted one of {known}.{hint}")


def _gpipe(stage: int, stages: int, microbatches: int) -> list[Task]:
    del stages
    return [
        Task(stage, kind, number)
        for kind in (Direction.FORWARD, Direction.BACKWARD)
        for number in range(microbatches)
    ]


def _one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Task]:
    ahead = min(stages - stage, microbatches)
    found = [Task(stage, Direction.FORWARD, number) for number in range(ahead)]
    for number in range(microbatches):
        found.append(Task(stage, Direction.BACKWARD, number))
        if number + ahead < microbatches:
            found.append(Task(stage, Direction.FORWARD, number + ahead))
    return found


def _zero_bubble(stage: int, stages: int, microbatches: int) -> list[Task]:
    """Schedules as 1F1B, with gradients of weights ``stage`` microbatches later, before the next
    forward.

    So each stage holds residuals of at most ``stages`` microbatches.
    """
    found: list[Task] = []
    done = 0
    for task in _one_forward_one_backward(stage, stages, microbatches):
        found.append(task)
        if task.kind == Direction.BACKWARD and task.microbatch >= stage:
            found.append(Task(stage, Direction.WEIGHTS, done))
            done += 1
    return found + [Task(stage, Direction.WEIGHTS, number) for number in range(done, microbatches)]


SCHEDULES: dict[str, Callable[[int, int, int], list[Task]]] = {
    "1f1b": _one_forward_one_backward,
    "gpipe": _gpipe,
    "zero-bubble": _zero_bubble,
}
"""By schedule name, the function that returns a stage's row, given its number and the numbers of
stages and microbatches."""
