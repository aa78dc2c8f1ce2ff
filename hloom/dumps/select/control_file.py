"""The control file: `steps` in the dumps' folder chooses steps while the program runs."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from hloom._jax.distributed import ProcessStore
from hloom.dumps.select.settings import Settings
from hloom.dumps.select.steps import SettingsError, Steps
from hloom.policy import first_time, warn

FILE = "steps"

_PERIOD_S = 0.5
"""Seconds between two looks at the file."""

_SHARE = 1000
"""The least time between reads, in multiples of a read's time: the file may be on a slow disk."""

_MAX_BYTES = 64 << 10

_log = logging.getLogger("hloom.dumps")


class Switch:
    """A control file, which need not exist, with its content at the last look."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._next_look_s = 0.0
        self._stamp: tuple[int, int, int] | None = None
        self._steps = Steps()
        self._next = False

    def chooses(self, step: int) -> bool:
        """Whether the file names this step; a "next" in it is used up by that."""
        with self._lock:
            start_s = time.monotonic()
            if start_s >= self._next_look_s:
                self._read(step)
                now_s = time.monotonic()
                self._next_look_s = now_s + max(_PERIOD_S, _SHARE * (now_s - start_s))
            is_next, self._next = self._next, False
        return is_next or step in self._steps

    def _read(self, step: int) -> None:
        try:
            # A network file system reports the current state only of an opened file.
            with self._file.open("rb") as file:
                stamp = _stamp(file.fileno())
                content = file.read(_MAX_BYTES)
                is_whole = stamp == _stamp(file.fileno())
        except FileNotFoundError:
            self._stamp, self._steps, self._next = None, Steps(), False
        except OSError as error:
            if first_time(f"switch {self._file}: {error}"):
                warn(f"hloom cannot read the steps to dump from {self._file}: {error}")
        else:
            # A file that is being written, which a shell empties first, is read at the next look.
            if stamp != self._stamp and is_whole:
                self._stamp = stamp
                self._take(content.decode("utf-8", errors="replace").strip(), step)

    def _take(self, text: str, step: int) -> None:
        try:
            self._steps = Steps.parse(text or "none", source=str(self._file), switch=True)
        except SettingsError as error:
            if first_time(str(error)):
                warn(f"hloom: {error} The steps chosen before stay chosen.")
            return
        self._next = self._steps.next
        if self._next and ProcessStore.find() and first_time(f"{self._file}: next"):
            warn(
                f"hloom: {self._file} says 'next', and each process dumps its own next step, "
                "which need not be the same one. Write a number with several processes."
            )
        _log.info("%s: %s", self._file, text)
        if self._steps.over_before(step) and first_time(f"{self._file}: {text}"):
            warn(
                f"hloom: {self._file} names {text!r}, and this is step {step} already: nothing "
                "of it is to come. Write a later step, or 'next'."
            )


def _stamp(descriptor: int) -> tuple[int, int, int]:
    """Returns a stamp that changes whenever the file is written."""
    stat = os.fstat(descriptor)
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


_switches: dict[Path, Switch] = {}


def chooses(settings: Settings, step: int) -> bool:
    """Whether the settings, or the control file in their folder, choose the step."""
    switch = _switches.get(settings.to)
    if switch is None:
        switch = _switches.setdefault(settings.to, Switch(settings.to / FILE))
    # The control file is read first, even where the settings choose every step.
    return switch.chooses(step) or (settings.steps is not None and step in settings.steps)
