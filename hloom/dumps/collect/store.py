"""Stores compiled modules, so that a step long after their compile can be dumped.

The modules before and between the passes are kept as bytecode on disk, the plans and the rest as
files beside them; memory holds paths and a small manifest only. The folder on disk belongs to the
process and is deleted when it ends. A killed process deletes nothing: the next process that needs
such a folder deletes those that are left over.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from hloom._jax import executables
from hloom.dumps.format import Missing, plain_name
from hloom.passes.framework.errors import reason_of
from hloom.policy import first_time, warn

MAX_MODULES = 1024
"""The most modules that are kept. A model's set-up compiles a few hundred small functions."""

MAX_BYTES = 512 << 20
"""The most bytes on disk of kept modules. A GPT of 4 unrolled layers takes 0.3 MiB a state."""

Content: TypeAlias = str | bytes | Path
"""The content of one file of a module folder: text or bytes; MLIR bytecode, to be written as text,
under a name that ends with .mlir; or the path of a kept file with such content."""


@dataclass(frozen=True)
class ModuleFacts:
    """The entries of a module's manifest that are known when it is compiled.

    Attributes:
      name: the module's name, e.g. "jit_step".
      platform: the platform, e.g. "cpu", "cuda".
      processes: the processes whose devices it runs on.
      arguments: the names of the module's arguments, in order, e.g. "state['w']".
      results: the names of its results, in order, e.g. "[0]['w']"; "result 3" where it has none.
      manifest: entries of the manifest, values that `json.dumps` takes: "spec", "passes", "target",
        "devices", "partitions", "replicas", "compile_options", "options" and "compile".
    """

    name: str
    platform: str
    processes: frozenset[int] = frozenset({0})
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LiveModule:
    """The facts about one compiled module apart from its executable.

    Attributes:
      facts: the entries of its manifest.
      files: the files of its folder, by file name there, e.g. "00-input.mlir", "plan-01-cse.json",
        "attempt-1/02-after-remat.mlir", "xla/thunk_sequence.txt".
      missing: the files that could not be kept, and why.
      passes: the passes around which states were kept at the compile; None for all.
    """

    facts: ModuleFacts
    files: Mapping[str, Content]
    missing: tuple[Missing, ...] = ()
    passes: frozenset[str] | None = None


KEPT = "states of the module, plans, thunk sequence, live ranges"
"""The name in `missing` of all parts that exist only for kept modules."""

_COMPILED_BEFORE = Missing(
    KEPT,
    "the module was compiled before dumps of steps were asked for, or outside of where they are",
    "set HLOOM_DUMP_TO and HLOOM_DUMP_STEPS (none will do) from the start of the process",
)


@dataclass(eq=False)
class _Entry:
    live: LiveModule | None  # None where it was dropped for newer ones
    fingerprint: bytes | None  # another executable may get the same address
    size_bytes: int  # on disk


class LiveModules:
    """The kept modules of this process; over a limit the oldest ones are dropped first."""

    def __init__(self, max_modules: int = MAX_MODULES, max_bytes: int = MAX_BYTES) -> None:
        self._max_modules = max_modules
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}

    def keep(self, executable: Any, live: LiveModule, size_bytes: int) -> None:
        """Keeps the facts of an executable, and drops the oldest over the limit."""
        fingerprint = executables.fingerprint(executable)
        # Freeing a dropped module deletes its files, which must not happen with the lock held.
        with self._lock:
            given_up = [self._entries.pop(id(executable), None)]
            self._entries[id(executable)] = _Entry(live, fingerprint, size_bytes)
            kept = self._kept()
            total_bytes = sum(each.size_bytes for each in kept)
            while len(kept) > self._max_modules or total_bytes > self._max_bytes:
                oldest = kept.pop(0)
                total_bytes -= oldest.size_bytes
                given_up.append(replace(oldest))
                oldest.live = None
            # The list of dropped modules is as long as that of the kept ones at most.
            empty = [key for key, each in self._entries.items() if each.live is None]
            for key in empty[: -self._max_modules]:
                del self._entries[key]
        del given_up

    def find(self, executable: Any) -> tuple[LiveModule | None, tuple[Missing, ...]]:
        """Returns the kept module of an executable, and what is missing without one."""
        with self._lock:
            entry = self._entries.get(id(executable))
        if entry is None or entry.fingerprint != executables.fingerprint(executable):
            return None, (_COMPILED_BEFORE,)
        if (live := entry.live) is not None:
            return live, ()
        why = (
            f"hloom keeps {self._max_modules} modules and {self._max_bytes >> 20} MiB of a "
            "process, and gave this one up for newer ones"
        )
        remedy = "name the modules that you want, e.g. HLOOM_DUMP_MODULES='jit_step*'"
        return None, (Missing(KEPT, why, remedy),)

    def usage(self) -> tuple[int, int]:
        """Returns the number of kept modules, and their bytes on disk."""
        with self._lock:
            kept = self._kept()
            return len(kept), sum(entry.size_bytes for entry in kept)

    def _kept(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.live is not None]


LIVE = LiveModules()
"""The kept modules of this process."""


_numbers = itertools.count()


def keep(executable: Any, live: LiveModule) -> None:
    """Keeps the facts of an executable for later steps; its files are moved."""
    LIVE.keep(executable, *on_disk(live))


def on_disk(live: LiveModule) -> tuple[LiveModule, int]:
    """Returns the module with its files on disk, where they stay as long as it lives, and their
    bytes.

    Where the disk is full, or fails, the result has the facts alone, with one warning.
    """
    folder: Path | None = None
    missing = live.missing
    try:
        folder = _new_folder(live.facts.name)
        files = {name: _put(folder, name, content) for name, content in live.files.items()}
        size_bytes = sum(file.stat().st_size for file in files.values())
    except OSError as error:
        delete(folder, os.getpid())
        folder, files, size_bytes = None, {}, 0
        why = f"it could not be kept on disk when the module was compiled: {reason_of(error)}"
        remedy = "make room there, or set TMPDIR to a folder with more"
        missing = (*missing, Missing(KEPT, why, remedy))
        if first_time("dump: keep"):
            warn(
                "hloom cannot keep the states of a module for dumps of later steps in "
                f"{tempfile.gettempdir()}: {reason_of(error)}. The program goes on; {remedy}."
            )
    live = replace(live, files=files, missing=missing)
    weakref.finalize(live, delete, folder, os.getpid()).atexit = False
    return live, size_bytes


def _put(folder: Path, name: str, content: Content) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    if isinstance(content, Path):
        # The file is copied where its source is on another disk.
        shutil.move(content, file)
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def _new_folder(name: str) -> Path:
    folder = process_folder() / f"{next(_numbers)}-{plain_name(name)}"
    folder.mkdir()
    return folder


_PREFIX = "hloom-live-"
_LOCK = "lock"
_folder_lock = threading.Lock()


def process_folder() -> Path:
    """Returns this process's folder, made at the first call. Raises OSError where that fails."""
    with _folder_lock:
        # A forked process must not write, or delete, where its parent does.
        return _folder_of(os.getpid())


def delete(folder: Path | None, owner: int) -> None:
    """Deletes a folder of the process `owner`; does nothing in another process."""
    if folder is not None and os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _folder_of(pid: int) -> Path:
    _delete_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{pid}-"))
    # Locked before it gets its name, so that no process deletes the folder as left over.
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


# Registered at import, and so before the writer, which reads from the folder, registers its own
# end: what is registered last runs first.
@atexit.register
def _delete_own() -> None:
    if _folder_of.cache_info().currsize:
        delete(process_folder(), os.getpid())
