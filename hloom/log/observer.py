"""Logs one program while it is compiled: the progress of its attempts, and the result."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

from hloom.compiling.observer import CompileObserver
from hloom.log.lines import LOGGER, Outlet, emit, emit_written, outlet, prefixed
from hloom.log.notebook import CellOutput
from hloom.log.settings import LogLevel, has_weight, log_level, min_bytes
from hloom.log.terminal import board, is_interactive
from hloom.policy import first_time
from hloom.show.units import refused as shown_refusal
from hloom.show.units import seconds as shown_seconds
from hloom.show.units import size

if TYPE_CHECKING:
    from jax.extend.mlir import ir

    from hloom._jax.executables import MemoryFigures
    from hloom._jax.out_of_memory import OutOfMemory
    from hloom.passes.framework.base import Pass
    from hloom.passes.framework.errors import PassError
    from hloom.passes.framework.feedback import PlanRecord
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.passes.framework.target import Target
    from hloom.record import CompileRecord


_log = logging.getLogger(f"{LOGGER}.log")

_P = ParamSpec("_P")


def _harmless(say: Callable[_P, None]) -> Callable[_P, None]:
    """Wraps a function so that it never raises: a failure of the log must not fail a compile."""

    @functools.wraps(say)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            say(*args, **kwargs)
        except Exception:
            _log.debug("what was to be said could not be", exc_info=True)

    return guarded


class ProgramLog(CompileObserver):
    """Logs a program whose memory, predicted or by XLA, is large enough for a line.

    Attempts are shown as one live line on a terminal and one output in a notebook, both replaced by
    the program's line at the end, and elsewhere as a line each.

    Args:
      name: the program's name.
      process: the number of this process, if several exist.
      asked: whether the spec is this program's own, set by its jit.
    """

    def __init__(self, name: str, process: int | None = None, *, asked: bool = False) -> None:
        self._process = "" if process is None else f"process {process}: "
        self._name = f"{self._process}{name}"
        self._start_s = time.monotonic()
        self._attempt = ""
        self._took = ""
        self._output: CellOutput | None = None
        self._took_bytes = 0
        self._is_asked, self._is_step = asked, True

    @_harmless
    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        if index == 0 and not self._is_asked:
            self._is_step = _is_step(module)

    @_harmless
    def attempt(
        self, number: int, most: int, record: PlanRecord | None, limit_bytes: int | None = None
    ) -> None:
        # A plan without a prediction, or without a successor, is the only attempt: its result is in
        # the program's line.
        if record is None or record.prediction is None or record.is_final:
            return
        if record.prediction.step_bytes < min_bytes():
            return
        before = ""
        if self._attempt and self._took:
            # Arguments alone may take more than the budget.
            limit = None if limit_bytes is None else max(limit_bytes, 0)
            bound = "" if limit is None else f" of {size(limit)}"
            if limit is not None and self._took_bytes <= limit:
                bound += " and holds: this one may take less time"
            before = f"; attempt {number - 1} took {self._took}{bound}"
        self._attempt = f"{self._name}: attempt {number} of {most}"
        predicted = size(record.prediction.temp_bytes)
        line = f"{self._attempt}, predicted {predicted}, compiling"
        if log_level() is LogLevel.PLANS:
            for found in record.found:
                emit(f"{self._name}: plan {number}: {found}")
        if not self._show(f"{line}{before}"):
            emit(f"{line}, {self._elapsed} so far{before}" if number > 1 else line)

    @_harmless
    def attempted(self, number: int, figures: MemoryFigures, seconds: float) -> None:
        self._took = "" if figures.temp_bytes is None else size(figures.temp_bytes)
        self._took_bytes = figures.temp_bytes or 0
        if self._attempt and self._took:
            self._show(f"{self._attempt} took {self._took}, planning")

    @_harmless
    def refused(self, number: int, memory: OutOfMemory) -> None:
        self._took = ""
        if not self._attempt:
            return
        line = f"{self._attempt} {shown_refusal(memory.used_bytes, memory.limit_bytes)}"
        if not self._show(f"{line}, planning"):
            emit(line)

    @_harmless
    def settled(self) -> None:
        board.drop(self)

    @_harmless
    def failed(self, pipeline: Pipeline, target: Target, failure: PassError) -> None:
        board.drop(self)

    @_harmless
    def compiled(
        self, pipeline: Pipeline, target: Target, record: CompileRecord, executable: Any
    ) -> None:
        board.drop(self)
        for step in pipeline.passes:
            nothing = step.nothing_on(record.platform)
            if nothing is not None and first_time(f"{step.name} on {record.platform}"):
                emit(f"{self._process}'{step.name}' {nothing.summary()}")
        if _is_reported(pipeline, record, is_step=self._is_asked or self._is_step):
            self._finish(f"{self._process}{record.headline}")
        self._tell_sent(record)
        if record.dump_dir is not None and record.fell_back is None:
            emit_written(record.dump_dir, self._name)

    @_harmless
    def close(self) -> None:
        board.drop(self)

    def _tell_sent(self, record: CompileRecord) -> None:
        """Logs the bytes between devices, once for a program that is compiled repeatedly."""
        if record.sent is None or not record.sent.summary or not has_weight(record):
            return
        line = f"{self._name}: {record.sent.summary}"
        if first_time(line):
            emit(line)

    @property
    def _elapsed(self) -> str:
        return shown_seconds(time.monotonic() - self._start_s)

    def _finish(self, line: str) -> None:
        if self._output is None:
            emit(line)
        else:
            self._output.show(prefixed(line))

    def _show(self, line: str) -> bool:
        """Shows a line in place of the last one; False where lines are only appended."""
        where = outlet()
        if where is Outlet.NOTEBOOK:
            self._output = self._output or CellOutput()
            self._output.show(prefixed(f"{line}, {self._elapsed} so far"))
            return True
        if where is Outlet.STDERR and is_interactive():
            board.show(self, prefixed(line))
            return True
        return False


def _is_step(module: ir.Module) -> bool:
    """Whether a program has a matrix product or a backward pass, unlike a model's set-up, which
    only draws and fills arrays."""
    from hloom.passes.analysis.autodiff import is_backward
    from hloom.passes.ir import walk
    from hloom.passes.ir.ops import facts_of

    ops = walk.operations(module.operation)
    return any(facts_of(op.name).is_product or is_backward(op) for op in ops)


_MANY_TIMES = 4
"""The ratio of temporaries to arguments and results from which a program is no set-up: a set-up
takes a few times the arrays that it draws."""


def _computes_much(record: CompileRecord) -> bool:
    """Whether a program takes far more memory than its arguments and results."""
    temp, step = record.temp_bytes, record.step_bytes
    return temp is not None and step is not None and temp > _MANY_TIMES * (step - temp)


def _is_reported(pipeline: Pipeline, record: CompileRecord, *, is_step: bool) -> bool:
    """Whether the log has a line for a program.

    An unchanged program has one where memory was to be saved and it is a step, computes much, or
    has its own spec; where something is wrong; or where `HLOOM_LOG` requests all programs. Of
    several with the same name, as JAX's own programs, the first has one.
    """
    if not has_weight(record):
        return False
    if record.changed:
        return True
    if not any(step.saves_memory for step in pipeline.passes):
        return False
    is_told = is_step or _computes_much(record) or min_bytes() == 0
    if not (is_told or record.fell_back or record.complaint):
        return False
    reasons = "; ".join(run.summary for run in record.runs)
    return first_time(f"{record.module} is as it was under {record.spec}: {reasons}")
