"""The files that XLA writes during a compile: asked for, and found for one executable.

An executable tells its HLO and its memory, and no thunks. The options for it are no part of JAX's
cache key; where the cache serves a compile, nothing is written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hloom.dumps.collect.store import Content
from hloom.xla.thunk_dump import DUMP_TO

AS_TEXT = "xla_dump_hlo_as_text"

_KEPT = {
    "thunk_sequence.txt": "thunk_sequence.txt",
    "thunk_sequence_after_thunk_passes.txt": "thunk_sequence_after_thunk_passes.txt",
    "thunk_metadata.txt": "thunk_metadata.txt",
    "after_optimizations-buffer-assignment.txt": "buffer-assignment.txt",
    "after_optimizations-live-range.txt": "live-range.txt",
    "after_optimizations-memory-usage-report.txt": "memory-usage-report.txt",
}
"""How XLA's file names end, and ours in the folder `xla`."""

Compile = Callable[[Any, Mapping[str, str | int | bool]], Any]
"""Compiles a module with these options beside the program's own."""


class XlaFiles:
    """What XLA writes in the compiles of one program.

    Attributes:
      given: the options of XLA that the program has, these among them, by name.
    """

    def __init__(self, given: Mapping[str, str], module: str) -> None:
        self._module = module
        theirs = given.get(DUMP_TO, "")
        self._is_ours = theirs in ("", "-")
        self._folder = Path(tempfile.mkdtemp(prefix="hloom-xla-") if self._is_ours else theirs)
        self._new: dict[int, list[Path]] = {}
        self.given = {**given, DUMP_TO: str(self._folder)}

    def watch(self, compile_: Compile) -> Compile:
        """The same compile, which has XLA write."""

        def watched(module: Any, options: Mapping[str, str | int | bool]) -> Any:
            before = self._listing()
            ours: dict[str, str | int | bool] = {}
            if self._is_ours:
                ours = {DUMP_TO: str(self._folder), AS_TEXT: True}
            try:
                executable = compile_(module, {**options, **ours})
            except Exception as error:
                # A backend may not know these options.
                if not any(name in str(error) for name in ours):
                    raise
                executable = compile_(module, options)
            self._new[id(executable)] = sorted(self._listing() - before)
            return executable

        return watched

    def of(self, executable: Any) -> dict[str, Content]:
        """XLA's files on an executable, by name in the module's folder."""
        name_part = f".{self._module}."
        new = [file for file in self._new.get(id(executable), ()) if name_part in file.name]
        found: dict[str, Content] = {}
        for ending, name in _KEPT.items():
            # Of several, the step itself: others are programs that autotuning tried.
            files = [file for file in new if file.name.endswith((f".{ending}", f"_{ending}"))]
            if files:
                largest = max(files, key=lambda file: file.stat().st_size)
                # What lies in a folder of the user's stays there.
                found[f"xla/{name}"] = largest if self._is_ours else largest.read_bytes()
        return found

    def close(self) -> None:
        """Deletes what is not kept."""
        if self._is_ours:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _listing(self) -> set[Path]:
        return set(self._folder.glob("*.txt"))
