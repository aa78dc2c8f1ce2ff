"""The attempt loop of a measured pass: each plan is compiled, and XLA's figures measure it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hloom.compiling.compilation import Compilation, Compiled, ModuleCandidate, Refused, caused
from hloom.compiling.request import RefusedError
from hloom.passes.framework import feedback
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Attempt, Complaint, MeasuredPass
from hloom.passes.framework.pipeline import PassRun, gc_paused
from hloom.passes.framework.text import pluralize
from hloom.passes.ir.clone import digest_of
from hloom.record import CompileAttempt
from hloom.show.units import size

_NO_LIMIT = 2**62
"""More than any device's memory: the limit that a process reports where nothing was refused."""


class Attempts:
    """Compiles one plan after the other for a program and keeps the best executable."""

    def __init__(
        self, compilation: Compilation, driver: MeasuredPass[Any], first: Compiled | Refused
    ) -> None:
        self._compilation, self._driver = compilation, driver
        self._newest: Compiled | Refused | None = first
        self._first = first.candidate
        self._tried: set[bytes] = set()
        self._best: Compiled | None = None if isinstance(first, Refused) else first
        compilation.best_attempt = None if self._best is None else 0
        # As long as XLA refused all: its newest error, and that for the program as it is.
        self._error: Exception | None = None
        self._refused: Exception | None = None

    def run(self) -> Compiled:
        """Makes attempts as long as the pass wants more, and returns the best; the original where
        XLA refuses all of them."""
        compilation = self._compilation
        complaint: Complaint | None = None
        failure: PassError | None = None
        try:
            complaint = self._run()
        except PassError as error:
            failure = error
        except Exception as error:
            failure = caused(error, self._driver.name, "measure", reason_of(error))
        finally:
            compilation.request.observer.settled()
        if complaint is not None:
            compilation.complain(self._driver.name, complaint)
        if self._best is None:
            return self._original(failure)
        if failure is not None:
            compilation.stop_trying(failure)
        return self._best

    def _original(self, failure: PassError | None) -> Compiled:
        """Compiles the program as it is. Raises where that may not be, or XLA refuses it too."""
        compilation, attempts = self._compilation, self._compilation.attempts
        if not compilation.request.falls_back:
            if failure is not None:
                raise failure
            raise RefusedError(changed=self._refused is None) from self._error
        if failure is None:
            failure = caused(self._error, self._driver.name, "compile", refusals(attempts))
        try:
            if self._refused is not None:
                raise self._refused
            compiled = compilation.compile(None)
        except Exception:
            if any(not each.unmodified for each in attempts):
                compilation.give_up(failure)
            raise
        compilation.fall_back(failure)
        return compiled

    def _run(self) -> Complaint | None:
        """Returns what the best attempt fails to meet; None where XLA compiled none."""
        compilation, driver = self._compilation, self._driver
        target = compilation.request.target
        progress: feedback.Progress[Any] = feedback.Progress()
        for progress in feedback.attempts(driver, target, self._measure):
            if progress.newest_is_best and isinstance(self._newest, Compiled):
                # The previous best is dropped, which frees the device memory that its executable
                # holds.
                self._best, compilation.best_attempt = self._newest, progress.best
                self._error = self._refused = None
            self._newest = None
        if self._best is None or compilation.best_attempt is None:
            return None
        best, readable = _candidate_of(self._best), compilation.readable
        number = compilation.best_attempt
        with gc_paused():  # it plans other means
            return driver.complaint(
                progress.attempts, number, target, lambda: readable(best), compilation.as_it_is
            )

    def _measure(self, earlier: Sequence[Attempt[Any]]) -> Attempt[Any] | None:
        """Compiles the next plan; None where it was compiled already or cannot be measured."""
        if earlier:
            self._newest = self._compile_next(earlier)
        if self._newest is None:
            return None
        newest, compilation = self._newest, self._compilation
        candidate = _candidate_of(newest)
        run = candidate.driven
        assert run is not None
        assert run.record is not None
        if isinstance(newest, Refused) and self._best is None:
            self._error = newest.error
            self._refused = self._refused if candidate.changed else newest.error
        figures = self._agreed(_figures_of(newest, run))
        step_s = newest.step_s if isinstance(newest, Compiled) else None
        attempt = None if figures is None else Attempt(run.record, *figures, step_s)
        number = len(compilation.attempts)
        if attempt is not None and attempt.is_refused and number == compilation.best_attempt:
            # XLA refused the plan in another process, so that no executable exists there.
            self._best = compilation.best_attempt = None
        prediction = run.record.prediction
        compilation.attempts.append(
            CompileAttempt(
                plan=run.plan,
                predicted_step_bytes=None if prediction is None else prediction.step_bytes,
                added_flops=None if prediction is None else int(prediction.added_flops),
                step_bytes=None if attempt is None else attempt.step_bytes,
                temp_bytes=None if attempt is None else attempt.temp_bytes,
                step_s=step_s,
                compile_s=newest.compile_s,
                cache_hit=newest.cache_hit if isinstance(newest, Compiled) else None,
                unmodified=not candidate.changed,
                limit_bytes=None if attempt is None else attempt.limit_bytes,
            )
        )
        return attempt

    def _compile_next(self, earlier: Sequence[Attempt[Any]]) -> Compiled | Refused | None:
        """Compiles the next plan; None where it makes a module that was compiled before."""
        if self._first is not None:
            self._tried.add(digest_of(self._first.module))
            self._first = None
        candidate = self._compilation.candidate(earlier)
        digest = digest_of(candidate.module)
        if digest in self._tried:
            return None
        self._tried.add(digest)
        try:
            return self._compilation.attempt(candidate)
        except Exception as error:
            pipeline = str(self._compilation.request.pipeline)
            raise PassError(pipeline, "compile", reason_of(error)) from error

    def _agreed(
        self, mine: tuple[int, int, int | None] | None
    ) -> tuple[int, int, int | None] | None:
        """Returns the largest figures of all processes; refused if XLA refused any of the plans."""
        if mine is None:
            return None
        step, temp, limit = mine
        told = (step, temp, -(_NO_LIMIT if limit is None else limit))
        step, temp, negative = self._compilation.request.agreement.largest(told)
        return step, temp, None if -negative == _NO_LIMIT else -negative


def refusals(attempts: Sequence[CompileAttempt]) -> str:
    """States, where XLA refused every attempt, the memory that each takes and the limit."""
    taken = ", ".join(size(each.step_bytes or 0) for each in attempts)
    limit = min(each.limit_bytes or 0 for each in attempts)
    plans = (
        "its plan, which takes"
        if len(attempts) == 1
        else (f"each of its {pluralize(len(attempts), 'plan')}, which take")
    )
    return f"XLA refuses {plans} {taken} of {size(limit)}"


def _figures_of(newest: Compiled | Refused, run: PassRun) -> tuple[int, int, int | None] | None:
    """Returns the bytes of a step, of its temporaries, and of the limit that it exceeds; None where
    unknown.

    XLA's error does not say how much of a step is temporaries: the sizes of arguments and results
    are taken from the plan's prediction.
    """
    if isinstance(newest, Refused):
        assert run.record is not None
        predicted, used = run.record.prediction, newest.memory.used_bytes
        around = 0 if predicted is None else predicted.step_bytes - predicted.temp_bytes
        return used, max(used - around, 0), newest.memory.limit_bytes
    step, temp = newest.figures.step_bytes, newest.figures.temp_bytes
    return None if step is None or temp is None else (step, temp, None)


def _candidate_of(made: Compiled | Refused) -> ModuleCandidate:
    assert made.candidate is not None
    return made.candidate
