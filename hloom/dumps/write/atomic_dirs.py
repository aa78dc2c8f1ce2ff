"""Folders of steps and processes, each claimed by one writer among runs, processes and machines.

A folder is created under a temporary name and then moved to its final name. The move succeeds for
one writer only, which claims the name. No lock is taken, and no writer waits.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import jax

from hloom._jax.distributed import ProcessStore
from hloom.compiling.cross_process import Store
from hloom.dumps.format import MANIFEST, read_json
from hloom.dumps.write.manifest import versions, write_manifest
from hloom.policy import first_time, warn

_RUN_KEY = "hloom/dump/run"
_RUN_TIMEOUT_S = 30.0
"""Seconds to wait for an id that another process has stored: one round trip on a loaded machine."""

_MOST_RUNS = 10_000
"""The most runs in one folder, after which the search for a free name ends."""

_lock = threading.Lock()
_run_ids: dict[int, str] = {}
_occurrences: Counter[tuple[str, str, int]] = Counter()


@dataclass(frozen=True)
class Claim:
    """The folder of one process in the dump of one step; the process writes to `staging`.

    The processes of a run share its id and the step's folder.
    """

    run: str
    step_folder: Path
    staging: Path

    @property
    def final(self) -> Path:
        """Returns the name of `staging` after all is written."""
        return self.step_folder / f"process-{jax.process_index()}"

    def publish(self) -> None:
        """Renames the folder, which marks it as complete. Raises OSError."""
        self.staging.rename(self.final)

    def withdraw(self) -> None:
        """Deletes the written files, and the step's folder where no other process can be in it."""
        shutil.rmtree(self.staging, ignore_errors=True)
        if jax.process_count() == 1:
            shutil.rmtree(self.step_folder, ignore_errors=True)


def run_id(store: Store | None = None) -> str:
    """Returns the random id of this run of the program, the same in all its processes.

    The processes agree on it in `store`, by default that of `jax.distributed`; without a store,
    each process is a run of its own.
    """
    with _lock:
        # A forked process is also a run of its own.
        if os.getpid() not in _run_ids:
            _run_ids[os.getpid()] = _agree(store or ProcessStore.find())
        return _run_ids[os.getpid()]


def _agree(store: Store | None) -> str:
    mine = secrets.token_hex(8)
    if store is None or jax.process_count() == 1:
        return mine
    # This fails where another process was first: a key is set only once.
    with suppress(RuntimeError):
        store.put(_RUN_KEY, mine)
    theirs = store.get(_RUN_KEY, _RUN_TIMEOUT_S)
    if theirs is None and first_time("dump run id"):
        warn(
            "hloom: the processes cannot agree on one folder for a step's dump: the store of "
            "jax.distributed does not answer. This process writes to one of its own."
        )
    return theirs or mine


def claim_step(root: Path, step: int, started: str) -> Claim:
    """Creates a folder for this process in the dump of a step. Raises OSError.

    The first process of the run creates `root`/step-N, with its manifest; the others find it. Where
    another run's folder has that name, or this run has dumped a step of that number before, the
    name is step-N-run-2 and so on, with one warning.

    `started` is the step's start, ISO 8601, UTC.
    """
    run = run_id()
    key = (run, str(root), step)
    with _lock:
        _occurrences[key] += 1
        occurrence = _occurrences[key]
    root.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, object] = {
        "step": step,
        "run": run,
        "time": occurrence,
        "started": started,
        "processes": jax.process_count(),
        "command": list(sys.orig_argv),
        "versions": versions(),
    }
    folder, taken = _claim_step_folder(root, step, manifest)
    if taken and first_time(f"dump {root}: earlier run"):
        whose = "another run" if occurrence == 1 else "this run"
        warn(f"hloom: {taken} is there already, of {whose}: step {step} is dumped to {folder}.")
    claim = Claim(run, folder, folder / f".process-{jax.process_index()}.partial")
    try:
        claim.staging.mkdir()
    except OSError:
        claim.withdraw()
        raise
    return claim


def _claim_step_folder(
    root: Path, step: int, manifest: dict[str, object]
) -> tuple[Path, Path | None]:
    """Returns the step's folder, and the first of that number that belongs to another dump."""
    staging, taken = new_staging(root, f"step-{step}"), None
    try:
        write_manifest(staging, "step", **manifest)
        for number in range(1, _MOST_RUNS):
            folder = root / (f"step-{step}" if number == 1 else f"step-{step}-run-{number}")
            # Otherwise the folder is an earlier one, or of a process that was faster than this one.
            if move(staging, folder) or _is_same(folder, manifest):
                return folder, taken
            taken = taken or folder
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    raise FileExistsError(f"{root} holds {_MOST_RUNS} dumps of step {step}: remove some")


def _is_same(folder: Path, manifest: dict[str, object]) -> bool:
    theirs = read_json(folder / MANIFEST)
    keys = ("run", "time")
    return isinstance(theirs, dict) and all(theirs.get(key) == manifest[key] for key in keys)


def new_staging(root: Path, stem: str) -> Path:
    """Creates a folder under `root` whose name marks it as incomplete. Raises OSError."""
    staging = root / f".{stem}-{secrets.token_hex(4)}.partial"
    staging.mkdir()
    return staging


def claim(staging: Path, name: Callable[[int], Path]) -> Path:
    """Moves a non-empty folder to the first free name, numbered from 0.

    Raises OSError.
    """
    return next(name(number) for number in itertools.count() if move(staging, name(number)))


def move(staging: Path, folder: Path) -> bool:
    """Moves a non-empty folder; returns False where its new name is taken. Raises OSError.

    If several move to one name at once, one succeeds.
    """
    if folder.exists():
        return False
    try:
        staging.rename(folder)
    except OSError:
        if folder.exists():
            return False
        raise
    return True
