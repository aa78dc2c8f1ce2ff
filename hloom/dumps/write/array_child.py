"""Writes shares of arrays in a process of its own, where this one is at its end.

Orbax works in threads, and Python starts none any more once a program has come to its end; from
3.12 on not even for what runs at exit. Another process it does start: one, for all shares that are
left, since its start is what takes long.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from hloom.dumps.write.array_files import ArrayEntry, write_share
from hloom.passes.framework.errors import reason_of

TIMEOUT_S = 60.0
"""How long to wait for a share. The first waits for JAX and Orbax too, 5 s on a slow machine."""

_END_S = 5.0
"""How long it may take to end."""

_SCRIPT = "from hloom.dumps.write.array_child import serve; serve()"
_ENDING = "interpreter shutdown"
"""What Python says where a thread is not started: of `threading` and of `concurrent.futures`."""


def is_ending(error: BaseException) -> bool:
    """Whether something failed only because the program is at its end."""
    return _ENDING in str(error)


class _Child:
    """The process, which writes one share after the other."""

    def __init__(self) -> None:
        # Neither the program's devices nor its passes and dumps are for that process.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HLOOM_")}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=kept | {"JAX_PLATFORMS": "cpu", "JAX_HLOOM": "off"},
        )

    def write(
        self, folder: Path, entries: Sequence[ArrayEntry], shards: Mapping[str, np.ndarray]
    ) -> None:
        """As `write_share`. Raises OSError where that fails, or is not done in time."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            pickle.dump((folder.absolute(), tuple(entries), dict(shards)), stdin)
            stdin.flush()
            if not select.select([stdout], [], [], TIMEOUT_S)[0]:
                self._process.kill()
                raise OSError(f"the arrays were not written {TIMEOUT_S:.0f} s after the end")
            failure = pickle.load(stdout)
        except (BrokenPipeError, EOFError):
            raise OSError(self._last_words()) from None
        if failure is not None:
            raise OSError(failure)

    def close(self) -> None:
        """Ends the process, which has nothing more to do; kills it where it does not end."""
        try:
            with suppress(BrokenPipeError):
                self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the process ended with {status}"


_child: _Child | None = None
_lock = threading.Lock()


def write_share_elsewhere(
    folder: Path, entries: Sequence[ArrayEntry], shards: Mapping[str, np.ndarray]
) -> None:
    """As `write_share`, in another process, which is there for further ones until `close`.

    Raises OSError where that fails or is not in time.

    Args:
      folder: not there yet.
      entries, shards: the share.
    """
    global _child
    with _lock:
        child = _child = _child or _Child()
        try:
            child.write(folder, entries, shards)
        except BaseException:
            # A share that failed may have left something in the pipes.
            _child = None
            child.close()
            raise


def close() -> None:
    """Ends the other process, if there is one."""
    global _child
    with _lock:
        child, _child = _child, None
        if child is not None:
            child.close()


def serve() -> None:
    """What the other process does: writes what comes in on stdin, tells on stdout what failed."""
    replies = os.fdopen(os.dup(1), "wb")
    # Whatever else is printed goes where messages go.
    os.dup2(2, 1)
    while True:
        try:
            folder, entries, shards = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        failure = None
        try:
            write_share(folder, entries, shards)
        except Exception as error:
            failure = str(error) if isinstance(error, OSError) else reason_of(error)
        pickle.dump(failure, replies)
        replies.flush()
