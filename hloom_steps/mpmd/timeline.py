"""Runs a schedule on a clock: the order of tasks, their transfers, and the values held meanwhile.

All of it follows from the values that each program reads and returns: a schedule that would read a
value before it is computed, or on a stage that it was not sent to, is an error before anything
runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from hloom_steps.mpmd.schedules import Rows, Task
from hloom_steps.stages.programs import Direction, StageProgram, StagePrograms, StageValue


class ScheduleError(ValueError):
    """A schedule cannot run: the text says which task waits for what."""


@dataclass(frozen=True)
class Send:
    """The results of a task that another stage reads, sent together.

    Attributes:
      task: the task that computes them.
      to: the stage that reads them.
      values: their numbers, ascending.
    """

    task: Task
    to: int
    values: tuple[int, ...]

    @property
    def what(self) -> str:
        """Returns the name of the sent values, "F3"."""
        return self.task.what

    def __str__(self) -> str:
        return f"{self.task}->{self.to}"


@dataclass(frozen=True)
class Timeline:
    """A schedule in time.

    Attributes:
      order: the tasks in the order of their starts; all processes issue them in this order.
      spans: the start and end of each task.
      sends: the transfers after each task, before the next one starts.
      last_reads: for each task, the values of its microbatch that its stage does not need after it.
      live: for each stage, the most microbatches of which it holds residuals at once.
    """

    order: tuple[Task, ...]
    spans: Mapping[Task, tuple[float | Fraction, float | Fraction]]
    sends: Mapping[Task, tuple[Send, ...]]
    last_reads: Mapping[Task, tuple[int, ...]]
    live: tuple[int, ...]

    @property
    def end(self) -> float | Fraction:
        """Returns the end of the last task."""
        return max(end for _, end in self.spans.values())

    @property
    def bubble(self) -> float:
        """Returns the share of the stages' time that they wait."""
        busy = sum(end - start for start, end in self.spans.values())
        return float(1 - busy / (self.end * len(self.live)))


class Programs:
    """The programs of stages by stage and kind, and the dependencies between tasks."""

    def __init__(self, stages: StagePrograms) -> None:
        self.count, self._makers = stages.count, stages.makers
        self._by_task = {(each.stage, each.kind): each for each in stages.programs}

    def of(self, task: Task) -> StageProgram:
        """Returns the program that a task runs."""
        return self._by_task[task.stage, task.kind]

    def tasks(self, rows: Rows) -> list[list[Task]]:
        """Returns the tasks of rows that have a program."""
        return [[task for task in row if (task.stage, task.kind) in self._by_task] for row in rows]

    def needs(self, task: Task) -> list[tuple[int, Task]]:
        """Returns the values that a task reads, each with the task that computes it."""
        return [(number, self.maker(number, task.microbatch)) for number in self.read_by(task)]

    def maker(self, number: int, microbatch: int) -> Task:
        """Returns the task that computes a value. Raises ScheduleError where none does."""
        if number not in self._makers:
            raise ScheduleError(f"no program makes value {number}")
        program = self._makers[number]
        return Task(program.stage, program.kind, microbatch)

    def read_by(self, task: Task) -> list[int]:
        """Returns the numbers of the values that a task reads."""
        reads = self.of(task).reads
        return list(dict.fromkeys(each.number for each in reads if isinstance(each, StageValue)))


def timeline_of(
    stages: StagePrograms,
    rows: Rows,
    seconds: Callable[[StageProgram], float | Fraction] | None = None,
) -> Timeline:
    """Runs a schedule on a clock.

    Each stage runs its own tasks in order, each as soon as its values have arrived. Tasks that
    could start at the same time start in the order of their stages, so that the order is the same
    in every process.

    Args:
      stages: the programs; tasks of rows without a program are left out.
      rows: the tasks of each stage, in order.
      seconds: the seconds of a program; by default one, or two where it also returns gradients of
        weights that other stages have a program for.

    Raises ScheduleError where a task would wait for ever, or would read a value that was not
    computed or not sent to its stage.
    """
    programs = Programs(stages)
    clock = _Clock(programs, programs.tasks(rows), seconds or partial(_equal, stages))
    order = clock.run()
    sends = _sends(programs, order)
    last_reads = _last_reads(programs, order)
    check_order(stages, order, sends)
    return Timeline(tuple(order), clock.spans, sends, last_reads, _live(programs, order))


def _equal(stages: StagePrograms, program: StageProgram) -> Fraction:
    kinds = {each.kind for each in stages.programs if each.stage == program.stage}
    apart = any(each.kind is Direction.WEIGHTS for each in stages.programs)
    both = program.kind is Direction.BACKWARD and apart and Direction.WEIGHTS not in kinds
    return Fraction(2 if both else 1)


class _Clock:
    def __init__(
        self,
        programs: Programs,
        rows: Sequence[Sequence[Task]],
        seconds: Callable[[StageProgram], float | Fraction],
    ) -> None:
        self._programs, self._rows, self._seconds = programs, rows, seconds
        self._done = [0] * len(rows)
        self._free: list[float | Fraction] = [Fraction(0)] * len(rows)
        self.spans: dict[Task, tuple[float | Fraction, float | Fraction]] = {}

    def run(self) -> list[Task]:
        """Returns the tasks in the order of their starts."""
        order: list[Task] = []
        while any(done < len(row) for done, row in zip(self._done, self._rows, strict=True)):
            ready = [
                (start, stage, task)
                for stage, task in self._next()
                if (start := self._start(task)) is not None
            ]
            if not ready:
                raise ScheduleError("; ".join(map(self._waiting, (t for _, t in self._next()))))
            start, stage, task = min(ready, key=lambda each: each[:2])
            end = start + self._seconds(self._programs.of(task))
            self.spans[task] = start, end
            self._free[stage] = end
            self._done[stage] += 1
            order.append(task)
        return order

    def _next(self) -> list[tuple[int, Task]]:
        return [
            (stage, row[done])
            for stage, (done, row) in enumerate(zip(self._done, self._rows, strict=True))
            if done < len(row)
        ]

    def _start(self, task: Task) -> float | Fraction | None:
        makers = [maker for _, maker in self._programs.needs(task)]
        if any(maker not in self.spans for maker in makers):
            return None
        return max([self._free[task.stage], *(self.spans[maker][1] for maker in makers)])

    def _waiting(self, task: Task) -> str:
        for number, maker in self._programs.needs(task):
            if maker not in self.spans:
                return f"{task} waits for value {number} of {maker}"
        return f"{task} waits"


def _sends(programs: Programs, order: Sequence[Task]) -> dict[Task, tuple[Send, ...]]:
    readers: dict[int, set[int]] = {}
    for task in order:
        for number in programs.read_by(task):
            readers.setdefault(number, set()).add(task.stage)
    found: dict[Task, tuple[Send, ...]] = {}
    for task in order:
        by_stage: dict[int, list[int]] = {}
        for number in made_by(programs.of(task)):
            for stage in sorted(readers.get(number, set()) - {task.stage}):
                by_stage.setdefault(stage, []).append(number)
        found[task] = tuple(
            Send(task, stage, tuple(sorted(numbers))) for stage, numbers in sorted(by_stage.items())
        )
    return found


def made_by(program: StageProgram) -> list[int]:
    """Returns the numbers of the values that a program computes."""
    return [each.number for each in program.gives if isinstance(each, StageValue)]


def _last_reads(programs: Programs, order: Sequence[Task]) -> dict[Task, tuple[int, ...]]:
    """Returns, for each task, the values of its microbatch that its stage does not need after it.

    A value that its own stage does not read is not needed after the task that computes it.
    """
    last: dict[tuple[int, int, int], Task] = {}
    for task in order:
        for number in [*made_by(programs.of(task)), *programs.read_by(task)]:
            last[task.stage, task.microbatch, number] = task
    found: dict[Task, list[int]] = {task: [] for task in order}
    for (_, _, number), task in last.items():
        found[task].append(number)
    return {task: tuple(sorted(numbers)) for task, numbers in found.items()}


def _live(programs: Programs, order: Sequence[Task]) -> tuple[int, ...]:
    left = Counter((task.stage, task.microbatch) for task in order)
    begun: list[set[int]] = [set() for _ in range(programs.count)]
    most = [0] * programs.count
    for task in order:
        begun[task.stage].add(task.microbatch)
        most[task.stage] = max(most[task.stage], len(begun[task.stage]))
        left[task.stage, task.microbatch] -= 1
        if not left[task.stage, task.microbatch]:
            begun[task.stage].remove(task.microbatch)
    return tuple(most)


def check_order(
    stages: StagePrograms, order: Sequence[Task], sends: Mapping[Task, Sequence[Send]]
) -> None:
    """Follows each value from stage to stage. Raises ScheduleError where a value is missing, or a
    task or a transfer occurs twice or never.

    `sends`, in the order of tasks, is the one order of transfers for all processes: a receiver
    starts each transfer at the same position as its sender.
    """
    programs = Programs(stages)
    there: list[set[tuple[int, int]]] = [set() for _ in range(stages.count)]
    seen: set[Task] = set()
    for task in order:
        if task in seen:
            raise ScheduleError(f"{task} runs twice")
        seen.add(task)
        held = there[task.stage]
        for number in programs.read_by(task):
            if (task.microbatch, number) not in held:
                raise ScheduleError(f"{task} reads value {number}, which is not on its stage")
        held.update((task.microbatch, number) for number in made_by(programs.of(task)))
        for send in sends[task]:
            for number in send.values:
                if (task.microbatch, number) not in held:
                    raise ScheduleError(f"{send} has value {number}, which is not there")
                if (task.microbatch, number) in there[send.to]:
                    raise ScheduleError(f"{send} has value {number}, which is there already")
                there[send.to].add((task.microbatch, number))
    microbatches = {task.microbatch for task in order}
    missing = [
        str(Task(each.stage, each.kind, number))
        for each in stages.programs
        for number in sorted(microbatches)
        if Task(each.stage, each.kind, number) not in seen
    ]
    if missing:
        raise ScheduleError(f"{', '.join(missing)} never run")


def held_bytes(stages: StagePrograms, timeline: Timeline) -> tuple[int, ...]:
    """Returns, for each stage, the peak of bytes in values that a device holds beside its
    programs."""

    def bytes_of(number: int) -> int:
        return stages.values[number].bytes

    programs = Programs(stages)
    held = [0] * stages.count
    most = [0] * stages.count
    for task in timeline.order:
        here = task.stage
        held[here] += sum(map(bytes_of, made_by(programs.of(task))))
        most[here] = max(most[here], held[here])
        for send in timeline.sends[task]:
            held[send.to] += sum(map(bytes_of, send.values))
            most[send.to] = max(most[send.to], held[send.to])
        held[here] -= sum(map(bytes_of, timeline.last_reads[task]))
    return tuple(most)
