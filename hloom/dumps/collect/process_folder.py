"""A folder of this process for what it keeps, deleted when it ends.

A process that is killed deletes nothing: the next one that needs such a folder deletes what those
before it left. A lock tells whose process is gone; the system frees it with the process.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
import threading
from pathlib import Path

_PREFIX = "hloom-live-"
_LOCK = "lock"

_thread_lock = threading.Lock()


def process_folder() -> Path:
    """This process's folder, made at the first call. Raises OSError where it cannot be made."""
    with _thread_lock:
        # A forked process must not write, or delete, where its parent does.
        return _folder_of(os.getpid())


def delete(folder: Path | None, owner: int) -> None:
    """Deletes a folder in the one of the process `owner`; nothing in another process."""
    if folder is not None and os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _folder_of(pid: int) -> Path:
    _delete_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{pid}-"))
    # Locked before it has its name: nobody takes the folder for an abandoned one.
    unnamed = folder / f"{_LOCK}-unnamed"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(folder / _LOCK)
    return folder


def _delete_abandoned() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            with lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:
            continue  # its process is alive, or it is another user's


# Registered at import, and so before anything is kept. The writer, which reads from the folder,
# comes to its end before anything that is registered so.
@atexit.register
def _delete_own() -> None:
    if _folder_of.cache_info().currsize:
        delete(process_folder(), os.getpid())
