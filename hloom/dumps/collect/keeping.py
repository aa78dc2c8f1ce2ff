"""Puts what is kept of a module on disk, into a folder of the process that goes with it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from hloom.dumps.collect.process_folder import delete, process_folder
from hloom.dumps.collect.store import KEPT, LIVE, Content, LiveModule, ModuleFacts
from hloom.dumps.read.module import Missing, plain_name
from hloom.passes.framework.errors import reason_of
from hloom.policy import first_time, warn

_numbers = count()


def keep(
    executable: Any,
    facts: ModuleFacts,
    files: Mapping[str, Content],
    missing: tuple[Missing, ...],
    passes: frozenset[str] | None = None,
) -> None:
    """Keeps what is known of an executable, for the steps to come.

    Args:
      executable: JAX's.
      facts: what its manifest tells.
      files: what goes into its folder; files among them are moved.
      missing: what there is not.
      passes: those around which states were asked for; None for all.

    Where the disk is full, or fails, keeps the facts alone, and warns once.
    """
    folder: Path | None = None
    try:
        folder = _new_folder(facts.name)
        kept = {name: _put(folder, name, content) for name, content in files.items()}
        size_bytes = sum(file.stat().st_size for file in kept.values())
    except OSError as error:
        delete(folder, os.getpid())
        folder, kept, size_bytes = None, {}, 0
        why = f"it could not be kept on disk when the module was compiled: {reason_of(error)}"
        remedy = "make room there, or set TMPDIR to a folder with more"
        missing = (*missing, Missing(KEPT, why, remedy))
        if first_time("dump: keep"):
            warn(
                "hloom cannot keep the states of a module for dumps of later steps in "
                f"{tempfile.gettempdir()}: {reason_of(error)}. The program goes on; {remedy}."
            )
    live = LiveModule(facts, kept, missing, passes)
    weakref.finalize(live, delete, folder, os.getpid()).atexit = False
    LIVE.keep(executable, live, size_bytes)


def _put(folder: Path, name: str, content: Content) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    if isinstance(content, Path):
        # A copy where the other one is on another disk.
        shutil.move(content, file)
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content, encoding="utf-8")
    return file


def _new_folder(name: str) -> Path:
    folder = process_folder() / f"{next(_numbers)}-{plain_name(name)}"
    folder.mkdir()
    return folder
