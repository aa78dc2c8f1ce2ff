"""The texts of lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hloom.passes.framework.text import pluralize
from hloom.tools.report.units import change, seconds, size

if TYPE_CHECKING:
    from hloom.passes.framework.base import Pass
    from hloom.passes.framework.feedback import Prediction
    from hloom.passes.framework.pipeline import PassRun
    from hloom.record import CompileRecord


def attempt_line(number: int, most: int, prediction: Prediction) -> str:
    """What is compiled now."""
    predicted = size(prediction.temp_bytes)
    return f"attempt {number} of {most}, predicted {predicted} temporaries, compiling"


def attempted_line(number: int, most: int, temp_bytes: int | None) -> str:
    """What came of an attempt, while the next one is planned."""
    got = "" if temp_bytes is None else f" gave {size(temp_bytes)} temporaries"
    return f"attempt {number} of {most}{got}, planning"


def unchanged_line(steps: Sequence[Pass], runs: Sequence[PassRun]) -> str:
    """Why passes that are there to save memory did nothing; empty where there are none."""
    why = [
        run.summary for step, run in zip(steps, runs, strict=False) if step.saves_memory and run.empty
    ]
    return f"unchanged: {'; '.join(why)}" if why else ""


def shown_path(path: Path) -> str:
    """A path as one types it here: from the folder that the program runs in, where it is inside."""
    try:
        return str(path.relative_to(os.getcwd()))
    except (ValueError, OSError):
        return str(path)


def step_bytes(record: CompileRecord) -> int | None:
    """XLA's bytes of arguments, results that are not arguments given back, and temporaries."""
    figures = (record.argument_bytes, record.output_bytes, record.temp_bytes, record.alias_bytes)
    known = [each for each in figures if each is not None]
    return sum(known[:3]) - known[3] if len(known) == len(figures) else None


def headline(record: CompileRecord) -> str:
    before = record.attempts[0].temp_bytes if len(record.attempts) > 1 else None
    after = record.temp_bytes or 0
    memory = f"{size(after)} temporaries"
    if before:
        memory = f"{size(before)} → {memory} ({change(before, after)})"
    return f"{record.module}: {memory}, {pluralize(record.compiles, 'compile')}, {seconds(record.pass_s)}"
