"""Runs steps of several processes with timeouts: a step that waits too long fails, naming the
process it waits for."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import jax

from hloom.passes.framework.errors import reason_of
from hloom_steps.mpmd.liveness import Peers, StagesError
from hloom_steps.mpmd.transports import Parcel

_POLL_S = 0.002
_GRACE_S = 5.0
"""Seconds that an error of a transfer waits for the report that its other process has died."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class _Pending:
    parcel: Parcel | None
    arrays: Sequence[Any]

    def is_ready(self) -> bool:
        return all(array.is_ready() for array in self.arrays)

    def waits(self, me: int) -> str:
        """Formats "stage 2 waits for F5 of stage 1, process 3"."""
        parcel = self.parcel
        if parcel is None:
            return "the programs of this process run"
        source, to = parcel.stages
        other = f"process {self.other(me)}"
        if parcel.to.process == me:
            return f"stage {to} waits for {parcel.what} of stage {source}, {other}"
        return f"stage {source} waits for stage {to}, {other}, to take {parcel.what}"

    def other(self, me: int) -> int | None:
        """Returns the other process of a transfer."""
        if self.parcel is None:
            return None
        source, to = self.parcel.source.process, self.parcel.to.process
        return to if source == me else source


class Watch:
    """Runs steps while watching their transfers and the other processes.

    Args:
      me: the number of this process.
      timeout_s: the seconds without an ended transfer or a started program that are an error.
    """

    def __init__(self, me: int, timeout_s: float) -> None:
        self._me, self._timeout_s = me, timeout_s
        self._news = threading.Event()
        self._pending: deque[_Pending] = deque()
        self._starting: _Pending | None = None
        self.peers: Peers | None = None
        self._failed: str | None = None

    def changed(self) -> None:
        """Wakes the watch to check the state."""
        self._news.set()

    def starting(self, parcel: Parcel) -> None:
        """Notes which transfer is started next: if the start blocks, nothing of it is watched
        yet."""
        self._starting = _Pending(parcel, ())

    def started(self, parcel: Parcel, arrays: list[jax.Array]) -> None:
        """Watches a transfer, which is complete when its arrays are ready."""
        self._pending.append(_Pending(parcel, arrays))
        self._starting = None

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Runs work and returns its result, when all transfers and the result's arrays are
        complete.

        Raises StagesError where a process has died, or nothing has happened for too long. The work
        may then still block in its thread, and this process ends without waiting for that thread.
        """
        if self._failed is not None:
            raise StagesError(f"{self._failed}. No further step can run: start the job again.")
        done: list[_Result] = []
        errors: list[BaseException] = []

        def worked() -> None:
            try:
                done.append(work())
            except BaseException as error:
                errors.append(error)
            self._news.set()

        self._pending.clear()
        self._starting = None
        # Programs in a chosen step of dumps are watched in its thread. Loaded where a step was
        # chosen.
        tracer = sys.modules.get("hloom.dumps.collect.tracer")
        target = worked if tracer is None else tracer.watched_as_here(worked)
        threading.Thread(target=target, name="hloom-stages", daemon=True).start()
        try:
            self._wait(done, errors)
        except KeyboardInterrupt:
            self._failed = "hloom.stages: a step was interrupted"
            _leave_at_exit()
            raise
        return done[0]

    def _wait(self, done: list[Any], errors: list[BaseException]) -> None:
        """Waits until a step and its result's arrays are complete. Raises StagesError."""
        last = time.monotonic()
        is_final = False
        while True:
            try:
                count = self._take_ready()
            except Exception as error:
                self._fail_of(error)
            if errors:
                self._fail_of(errors[0])
            if done and not is_final:
                is_final = True
                leaves = [leaf for leaf in jax.tree.leaves(done[0]) if isinstance(leaf, jax.Array)]
                self._pending.append(_Pending(None, leaves))
            elif is_final and not self._pending:
                return
            if count:
                last = time.monotonic()
            self._check(time.monotonic() - last)
            self._news.wait(_POLL_S)
            self._news.clear()

    def _take_ready(self) -> int:
        """Removes complete transfers, in order. Raises a transfer's error."""
        count = 0
        while self._pending and self._pending[0].is_ready():
            jax.block_until_ready(self._pending[0].arrays)
            self._pending.popleft()
            count += 1
        return count

    def _check(self, idle_s: float) -> None:
        """Raises StagesError where the step cannot go on."""
        first = self._first()
        gone = self.peers.gone if self.peers is not None else {}
        dead = [each for each, how in sorted(gone.items()) if how == "has died"]
        other = first.other(self._me) if first is not None else None
        if dead:
            self._fail(", ".join(f"process {each} has died" for each in dead))
        if other in gone:
            self._fail(f"process {other} {gone[other]}")
        if idle_s > self._timeout_s and (first is None or first.parcel is not None):
            self._fail(f"nothing has come for {idle_s:.0f} s")

    def _first(self) -> _Pending | None:
        """Returns the first transfer that this process waits for."""
        return self._pending[0] if self._pending else self._starting

    def _fail_of(self, error: BaseException) -> NoReturn:
        """Raises StagesError for an error of a transfer: mostly the other process has died."""
        if isinstance(error, StagesError):
            raise error
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until:
            self._check(0.0)
            time.sleep(_POLL_S)
        self._fail(reason_of(error))

    def _fail(self, why: str) -> NoReturn:
        first = self._first()
        waits = [] if first is None else [first.waits(self._me)]
        text = "; ".join([f"hloom.stages: {why}", *waits])
        self._failed = text
        _leave_at_exit()
        raise StagesError(
            f"{text}; this is process {self._me}. The parameters are those before the step."
        ) from None


_left: list[bool] = []


def _leave_at_exit() -> None:
    """Makes this process exit without JAX's wait for the other processes."""
    if _left:
        return
    _left.append(True)

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(1)

    atexit.register(leave)
