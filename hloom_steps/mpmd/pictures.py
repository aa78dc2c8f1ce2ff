"""Draws schedules: one row per stage, time from left to right."""

from __future__ import annotations

from collections.abc import Mapping

from hloom_steps.mpmd.schedules import Task
from hloom_steps.mpmd.timeline import Timeline

_WIDEST = 120
"""The most characters of a row; the rest is left out."""


def drawn(columns: Mapping[Task, float], stages: int) -> list[str]:
    """Returns a row for each stage, "F0 F1    B0": each program at its column.

    Where a column is taken, the program follows directly after the one before it.
    """
    width = max(2, *(len(task.what) for task in columns)) + 1
    most = _WIDEST // width
    rows = []
    for stage in range(stages):
        mine = sorted((at, task) for task, at in columns.items() if task.stage == stage)
        cells: list[str] = []
        for at, task in mine:
            cells += [""] * (int(at) - len(cells))
            cells.append(task.what)
        more = " ..." if len(cells) > most else ""
        rows.append("".join(cell.ljust(width) for cell in cells[:most]).rstrip() + more)
    return rows


def planned_columns(timeline: Timeline) -> dict[Task, float]:
    """Returns the column of each program, if programs of equal length take one each."""
    return {task: float(start) for task, (start, _) in timeline.spans.items()}
