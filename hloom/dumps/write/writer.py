"""Writes the dumps of chosen steps in the background, one after the other.

    DIR/step-3/.process-0.partial/   while it is written; its manifest lists what will follow
    DIR/step-3/process-0/            when all is written

The training thread only submits a step. Any failure here is one warning, and the files of that step
are deleted.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from hloom.dumps.format import Missing, plain_name
from hloom.dumps.write.atomic_dirs import Claim, claim_step
from hloom.dumps.write.manifest import write_manifest
from hloom.dumps.write.module import write_execution
from hloom.passes.framework import structure
from hloom.passes.framework.errors import reason_of
from hloom.passes.framework.text import pluralize
from hloom.policy import first_time, warn

if TYPE_CHECKING:
    from hloom.dumps.collect.tracer import StepCapture

MAX_WAITING = 4
"""The most steps that wait to be written. Each holds its executables, and arrays if requested."""

EXIT_TIMEOUT_S = 30.0
"""Seconds that the end of the program waits for unwritten steps."""


class Writer:
    """A thread that writes steps, started with the first one. It drops steps when too many wait."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._waiting: deque[StepCapture] = deque()
        self._writing = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, capture: StepCapture) -> bool:
        """Submits a step and returns at once; False, with one warning, where it is dropped."""
        with self._changed:
            dropped = self._closed or len(self._waiting) >= self._max_waiting
            if not dropped:
                self._waiting.append(capture)
                self._changed.notify_all()
                if self._thread is None:
                    # A daemon: `close` bounds how long the end of the program waits for it.
                    self._thread = threading.Thread(
                        target=self._run, name="hloom-dump", daemon=True
                    )
                    self._thread.start()
        if dropped and first_time(f"dump {capture.settings.to}: too many steps"):
            warn(
                f"hloom: step {capture.step} is not dumped: {self._max_waiting} steps before it "
                f"are not written yet. Choose fewer steps, or a faster disk than that of "
                f"{capture.settings.to}."
            )
        return not dropped

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until all steps are written, for at most `timeout_s`, if given; returns False at
        the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left(), timeout_s)

    def close(self, timeout_s: float) -> int:
        """Accepts no more steps, waits for the submitted ones, and returns how many are left."""
        # Ctrl-C: the user does not want to wait.
        with suppress(KeyboardInterrupt):
            self.flush(timeout_s)
        with self._changed:
            self._closed = True
            left = self._left()
            self._waiting.clear()
            self._changed.notify_all()
        return left

    def _left(self) -> int:
        return len(self._waiting) + self._writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                capture = self._waiting.popleft()
                self._writing = True
            try:
                _tell_written(write_step(capture))
            except BaseException as error:
                reason = str(error) if isinstance(error, OSError) else reason_of(error)
                _tell(capture, f"dump of step {capture.step}: {reason}")
            finally:
                # The step's memory on the device and the host is freed before waiting threads are
                # notified.
                del capture
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()


def write_step(capture: StepCapture) -> Path:
    """Writes the modules that ran in a step, and returns this process's folder. Raises OSError.

    Where it raises, this process leaves no files of the step.
    """
    started = capture.started.astimezone(UTC).isoformat(timespec="milliseconds")
    claim = claim_step(capture.settings.to, capture.step, started)
    try:
        _write_modules(capture, claim)
        claim.publish()
    except BaseException:
        claim.withdraw()
        raise
    return claim.final


def _write_modules(capture: StepCapture, claim: Claim) -> None:
    folders = _folder_names(execution.name for execution in capture.executions)
    missing = capture.missing
    written: set[str] = set()

    def describe() -> None:
        modules = [
            {"folder": folder, "module": execution.name, "complete": folder in written}
            for folder, execution in zip(folders, capture.executions, strict=True)
        ]
        write_manifest(
            claim.staging,
            "process",
            process=jax.process_index(),
            step=capture.step,
            run=claim.run,
            modules=modules,
            missing=structure.written(missing),
            error=capture.error,
        )

    # Written first, so that an incomplete dump says what it is part of.
    describe()
    for folder, execution in zip(folders, capture.executions, strict=True):
        try:
            left_out = write_execution(execution, claim.staging / folder, step=capture.step)
        except OSError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            missing += (Missing(f"the rest of {folder}", reason),)
            _tell(capture, f"whole of {folder} in step {capture.step}: {reason}")
        else:
            written.add(folder)
            if left_out is not None:
                _tell(capture, f"arrays of step {capture.step}: {left_out}. The rest is written")
    describe()


def _folder_names(names: Iterable[str]) -> list[str]:
    """Returns a folder name for each module, in order: equal names are numbered."""
    counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    return [f"{name}-{next(counts[name])}" for name in map(plain_name, names)]


def _tell_written(folder: Path) -> None:
    """Logs, in one of the processes, that a step is written."""
    if jax.process_index() == 0:
        from hloom.log.lines import emit_written

        emit_written(folder.parent)


def _tell(capture: StepCapture, what: str) -> None:
    """Warns that a file cannot be written, once for each folder."""
    if not first_time(f"dump {capture.settings.to}"):
        return
    text = f"hloom cannot write the {what}"
    try:
        warn(text)
    except Warning:
        # `-W error`: no caller of this thread would catch it.
        print(text, file=sys.stderr)


_writer = Writer()


def submit(capture: StepCapture) -> None:
    """Submits a step to be written in the background; returns at once.

    One warning is given where it cannot be written, or too many steps wait already.
    """
    _writer.submit(capture)


def flush(timeout_s: float | None = None) -> bool:
    """Waits until every submitted step is written; see `Writer.flush`."""
    return _writer.flush(timeout_s)


@atexit.register
def finish(timeout_s: float = EXIT_TIMEOUT_S) -> None:
    """Writes the waiting steps, within `timeout_s`, at the end of the program."""
    start_s = time.monotonic()
    left = _renew().close(timeout_s)
    if left:
        waited_s = time.monotonic() - start_s
        print(
            f"hloom: {pluralize(left, 'step')} not dumped: not written {waited_s:.0f} s after the "
            "program's end.",
            file=sys.stderr,
        )


def _renew() -> Writer:
    """Returns the writer, and replaces it by a new one.

    A forked process does this first: the thread and the waiting steps are its parent's.
    """
    global _writer
    writer, _writer = _writer, Writer()
    return writer


os.register_at_fork(after_in_child=_renew)
