"""The attempts of a measured pass, each measured by a compile."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.executables import MemoryFigures
from hloom.compiling.candidates import Candidates, ModuleCandidate
from hloom.compiling.compiler import Compiled, Compiler
from hloom.compiling.request import CompileRequest
from hloom.passes.framework import feedback
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Attempt, Complaint, MeasuredPass
from hloom.record import CompileAttempt


class Attempts:
    """The attempts of one program, of which the best is kept.

    Attributes:
      best: the executable to use.
      all: every attempt, in order, for the record.
      best_index: which of `all` is the best.
    """

    def __init__(
        self,
        request: CompileRequest,
        driver: MeasuredPass[Any],
        candidates: Candidates,
        compiler: Compiler,
        first: Compiled,
    ) -> None:
        self.best = first
        self.best_index = 0
        self.all: list[CompileAttempt] = []
        self._request = request
        self._driver = driver
        self._candidates = candidates
        self._compiler = compiler
        self._newest: Compiled | None = first
        self._tried: set[bytes] = set()

    def run(self) -> Complaint | None:
        """Makes attempts as long as the pass wants more; gives what the best fails to hold.

        Raises PassError where a step fails; what was the best until then still is.
        """
        try:
            return self._run()
        except PassError:
            raise
        except Exception as error:
            raise PassError(self._driver.name, "measure", reason_of(error)) from error
        finally:
            self._request.observer.settled()

    def _run(self) -> Complaint | None:
        driver, target = self._driver, self._request.target
        progress: feedback.Progress[Any] = feedback.Progress()
        for progress in feedback.attempts(driver, target, self._measure):
            if progress.newest_is_best:
                # What was the best until now is dropped, and the memory that it holds with it.
                self.best, self.best_index = self._take_newest(), progress.best
            self._newest = None
        module = _candidate_of(self.best).module
        return driver.complaint(progress.attempts, self.best_index, target, lambda: module)

    def _take_newest(self) -> Compiled:
        assert self._newest is not None
        return self._newest

    def _measure(self, earlier: Sequence[Attempt[Any]]) -> Attempt[Any] | None:
        """Compiles the plan that follows; None where it was compiled, or nobody can measure it."""
        if earlier:
            self._newest = self._compile_next(earlier)
        if self._newest is None:
            return None
        compiled = self._newest
        run = _candidate_of(compiled).driven
        assert run is not None
        assert run.record is not None
        figures = self._agreed(compiled.figures)
        attempt = None if figures is None else Attempt(run.record, *figures)
        prediction = run.record.prediction
        self.all.append(
            CompileAttempt(
                plan=run.plan,
                predicted_step_bytes=None if prediction is None else prediction.step_bytes,
                added_flops=None if prediction is None else int(prediction.added_flops),
                step_bytes=None if attempt is None else attempt.step_bytes,
                temp_bytes=None if attempt is None else attempt.temp_bytes,
                compile_s=compiled.compile_s,
                cache_hit=compiled.cache_hit,
                unmodified=run.empty,
            )
        )
        return attempt

    def _compile_next(self, earlier: Sequence[Attempt[Any]]) -> Compiled | None:
        """Compiles the next plan; None where it makes a module that was compiled before."""
        if not self._tried:
            self._tried.add(_digest(_candidate_of(self.best).module))
        candidate = self._candidates.make(earlier)
        digest = _digest(candidate.module)
        if digest in self._tried:
            return None
        self._tried.add(digest)
        try:
            return self._compiler.compile(candidate)
        except Exception as error:
            pipeline = str(self._request.pipeline)
            raise PassError(pipeline, "compile", reason_of(error)) from error

    def _agreed(self, figures: MemoryFigures) -> tuple[int, int] | None:
        """Bytes of a step and of its temporaries, the largest that any process has."""
        mine = (
            figures.argument_bytes, figures.output_bytes, figures.alias_bytes, figures.temp_bytes
        )  # fmt: skip
        known = [each for each in mine if each is not None]
        if len(known) < len(mine):
            return None
        argument, output, alias, temp = self._request.agreement.largest(known)
        return argument + output - alias + temp, temp


def _candidate_of(compiled: Compiled) -> ModuleCandidate:
    assert compiled.candidate is not None
    return compiled.candidate


def _digest(module: ir.Module) -> bytes:
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    return hashlib.sha256(bytecode.getbuffer()).digest()
