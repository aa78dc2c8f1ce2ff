"""Tells of one program while it is compiled: where its attempts are, and what came of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hloom.compiling.observer import CompileObserver
from hloom.log import texts
from hloom.log.lines import Outlet, outlet, tell
from hloom.log.notebook import Output
from hloom.log.settings import min_bytes
from hloom.log.terminal import board, is_interactive
from hloom.tools.report.units import seconds as shown_seconds
from hloom.visible import visible

if TYPE_CHECKING:
    from hloom._jax.executables import MemoryFigures
    from hloom.passes.framework.base import Target
    from hloom.passes.framework.feedback import Prediction
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.record import CompileRecord


class ProgramLog(CompileObserver):
    """Tells of a program whose memory, as XLA or a prediction has it, is worth a line.

    On a terminal the attempts are a live line, in a notebook one output that ends as the line on
    the whole, and elsewhere a line each.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._start_s = time.monotonic()
        self._most = 0
        self._output: Output | None = None

    def attempt(self, number: int, most: int, prediction: Prediction | None) -> None:
        # A pass that predicts nothing has one attempt: the line on the whole tells of it.
        if prediction is None or prediction.step_bytes < min_bytes():
            return
        self._most = most
        line = f"{self._name}: {texts.attempt_line(number, most, prediction)}"
        if not self._show(line):
            so_far = f", {self._elapsed} so far" if number > 1 else ""
            tell(line + so_far)

    def attempted(self, number: int, figures: MemoryFigures, seconds: float) -> None:
        if self._most:
            self._show(f"{self._name}: {texts.attempted_line(number, self._most, figures.temp_bytes)}")

    def compiled(
        self, pipeline: Pipeline, target: Target, record: CompileRecord, executable: Any
    ) -> None:
        board.drop(self)
        if (texts.step_bytes(record) or 0) >= min_bytes():
            line = self._line(pipeline, record)
            if line and self._output is not None:
                self._output.show(f"hloom: {visible(line)}")
            elif line:
                tell(line)
        if record.dump_dir is not None and record.fell_back is None:
            tell(f"{self._name}: wrote {texts.shown_path(record.dump_dir)}")

    def close(self) -> None:
        board.drop(self)

    def _line(self, pipeline: Pipeline, record: CompileRecord) -> str:
        if record.changed:
            return texts.headline(record)
        # There was a warning where something is amiss.
        if record.fell_back is not None or record.complaint is not None:
            return ""
        why = texts.unchanged_line(pipeline.steps(), record.runs)
        return f"{self._name}: {why}" if why else ""

    @property
    def _elapsed(self) -> str:
        return shown_seconds(time.monotonic() - self._start_s)

    def _show(self, line: str) -> bool:
        """Shows a line in the place of the last one; False where lines only follow each other."""
        where = outlet()
        if where is Outlet.NOTEBOOK:
            self._output = self._output or Output()
            self._output.show(f"hloom: {visible(line)} ({self._elapsed})")
            return True
        if where is Outlet.STDERR and is_interactive():
            board.show(self, f"hloom: {visible(line)}")
            return True
        return False
