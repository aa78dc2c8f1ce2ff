"""The trace of a step, in order, and compared with its plan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hloom.passes.framework.tables import Fact, Kind, Statement, Table
from hloom_steps.mpmd.pictures import drawn, planned_columns
from hloom_steps.mpmd.plans import StagedPlan
from hloom_steps.mpmd.schedules import Task


@dataclass
class Trace:
    """The trace of a step.

    Attributes:
      tasks: the programs that it has started, in order, those of other processes included.
      sends: the transfers, in order: names such as "F3@0->1".
      live: for each stage, the most started microbatches of which it held values at once.
      spans: for each program of this process, the seconds from the step's start until its dispatch
        began and ended: the device may still be running it, or not have started.
    """

    tasks: list[Task] = field(default_factory=list)
    sends: list[str] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    spans: dict[Task, tuple[float, float]] = field(default_factory=dict)
    _begin: float = field(default_factory=time.perf_counter)

    @contextmanager
    def starting(self, task: Task) -> Iterator[None]:
        """Measures the seconds that dispatching a program takes."""
        start = time.perf_counter()
        yield
        self.spans[task] = start - self._begin, time.perf_counter() - self._begin


def told(plan: StagedPlan, trace: Trace) -> dict[str, object]:
    """Returns a step compared with its plan, as facts and tables that `json.dumps` takes."""
    is_planned = trace.tasks == list(plan.timeline.order)
    end = max((end for _, end in trace.spans.values()), default=0.0)
    facts = (
        Fact("order", "as planned" if is_planned else "not as planned", Kind.TEXT),
        Fact("programs started", len(trace.spans)),
        Fact("in", end, Kind.SECONDS),
        Fact("planned, by rooflines", float(plan.timed.end), Kind.SECONDS),
        Fact("transfers", len(trace.sends)),
        Fact("live microbatches by stage", ", ".join(map(str, trace.live)), Kind.TEXT),
        Fact("planned", ", ".join(map(str, plan.live)), Kind.TEXT),
    )
    return Statement(facts, (_pictures(plan, trace, end), _starts(plan, trace))).to_json()


def _pictures(plan: StagedPlan, trace: Trace, end: float) -> Table:
    """Draws both schedules, in the same number of columns of equal time."""
    scale = float(plan.timeline.end) / (end or 1.0)
    started = {task: start * scale for task, (start, _) in trace.spans.items()}
    both = zip(
        drawn(planned_columns(plan.timeline), plan.stages.count),
        drawn(started, plan.stages.count) if started else [""] * plan.stages.count,
        strict=True,
    )
    rows: list[tuple[int | None, str, str]] = []
    for stage, (planned, ran) in enumerate(both):
        rows += [(stage, "planned", planned), (None, "started", ran)]
    text = (
        "As planned, were all programs equally long; and by the time at which the run started each "
        "program, which the devices then work on by themselves."
    )
    columns = {"stage": Kind.COUNT, "": Kind.TEXT, "programs": Kind.DRAWING}
    return Table("Schedule, planned and as it ran", columns, tuple(rows), text)


def _starts(plan: StagedPlan, trace: Trace) -> Table:
    rows = tuple(
        (str(task), float(plan.timed.spans[task][0]), *_seconds(trace, task))
        for task in trace.tasks
    )
    columns = {
        "program": Kind.TEXT,
        "planned to start after": Kind.SECONDS,
        "was started after": Kind.SECONDS,
        "starting took": Kind.SECONDS,
    }
    text = "In the order of the run. The plan's times are those of rooflines."
    return Table("When programs started", columns, rows, text)


def _seconds(trace: Trace, task: Task) -> tuple[float | None, float | None]:
    if task not in trace.spans:
        return None, None
    start, end = trace.spans[task]
    return start, end - start
