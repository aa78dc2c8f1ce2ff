"""Plots memory against added time: the plans considered for a budget, and those compiled."""

from __future__ import annotations

import shlex
from functools import partial

from hloom.dumps.read.dump import ModuleDump
from hloom.passes.framework.text import pluralize
from hloom.passes.planner.comparison import corrected_bytes
from hloom.passes.planner.frontier import undominated
from hloom.passes.planner.record import measured
from hloom.show import units
from hloom_tools.budgets.dumped import compiled_plans, record_of
from hloom_tools.document.content import Note, Section
from hloom_tools.document.pictures import COLORS
from hloom_tools.estimates.drawing import Level, Mark, Scene
from hloom_tools.report.drawing import WIDTH_INCHES, Plot, Width
from hloom_tools.report.memory import Bound
from hloom_tools.report.plots import Figure

_HEIGHT_INCHES = {"wide": 3.9, "phone": 4.4}


def frontier_of(dump: ModuleDump, *, bound: Bound | None) -> Section | None:
    """Returns the section with the plot of a module that was planned to a budget; None for any
    other.

    The plot is read from the plan and the attempts: nothing is planned again.
    """
    record = record_of(dump.planned)
    if record is None or record.prediction is None or len(record.considered) < 2:
        return None
    compiled = list(compiled_plans(dump))
    attempts = [each.attempt for each in compiled]
    tried = measured(attempts)
    first = attempts[0] if attempts else record.prediction
    around_bytes = max(first.step_bytes - first.temp_bytes, 0)
    considered = [
        Mark(int(corrected_bytes(one, tried)) + around_bytes, one.seconds, "considered")
        for one in record.considered
    ]
    line = undominated([(mark.bytes, mark.seconds) for mark in considered], lambda one: one)
    marks = [
        Mark(
            each.attempt.step_bytes,
            each.attempt.record.cost,
            "used" if each.used else "attempt",
            str(number) if len(compiled) > 1 else "",
        )
        for number, each in enumerate(compiled, 1)
    ]
    levels: tuple[Level, ...] = ()
    if bound is not None and bound.bytes:
        bound_bytes = bound.bytes + (around_bytes if bound.of_temp else 0)
        levels = (Level(bound_bytes, "budget"),)
    scene = Scene("", line, (*considered, *marks), levels)
    least = min(one for one, _ in line)
    caption = (
        f"{pluralize(len(considered), 'plan')} that hloom considered, by its model"
        + (" corrected by XLA's figures" if tried else "")
        + ": what a step takes of each device, and the time that it adds by the model. "
        " The line joins those that none is better than."
    )
    if len(compiled) > 1:
        caption += " Numbers are attempts, in order, by XLA's own figures."
        refused = [str(number) for number, attempt in enumerate(attempts, 1) if attempt.is_refused]
        if refused:
            caption += f" XLA refused {', '.join(refused)}: the device has too little memory."
    alternative = (
        f"The plans reach from {units.size(max(one for one, _ in line))} with "
        f"{units.seconds(line[0][1])} added to {units.size(least)} with "
        f"{units.seconds(line[-1][1])} added."
    )
    wide, phone = _plot(scene, "wide"), _plot(scene, "phone")
    command = f"hloom show {shlex.quote(str(dump.folder))} budgets"
    return Section(
        "Memory against added time",
        "frontier",
        figures=(Figure("frontier", "", wide, phone, caption, alternative),),
        notes=(Note("To see what other budgets give", code=command),),
        pointer="Budgets",
    )


def _plot(scene: Scene, width: Width) -> Plot:
    draw = partial(scene.draw, colors=COLORS, legend_columns=4 if width == "wide" else 1)
    return Plot(WIDTH_INCHES[width], _HEIGHT_INCHES[width], draw)
