"""XLA's files of a module: optimised HLO, memory figures, live ranges and thunk sequences.

An executable, even one from the persistent cache, gives its HLO and its memory figures. The rest is
in files that XLA writes at a compile, by options that are not in JAX's cache key; where the cache
serves a compile, nothing is written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hloom._jax.executables import generated_code_bytes, memory_figures, optimized_text
from hloom.dumps.collect.store import Content, ModuleFacts
from hloom.dumps.format import Missing, json_text
from hloom.xla.hlo import DUMP_TO
from hloom.xla.live_ranges import live_ranges

AS_TEXT = "xla_dump_hlo_as_text"

_KEPT = {
    "thunk_sequence.txt": "thunk_sequence.txt",
    "thunk_sequence_after_thunk_passes.txt": "thunk_sequence_after_thunk_passes.txt",
    "thunk_metadata.txt": "thunk_metadata.txt",
    "after_optimizations-buffer-assignment.txt": "buffer-assignment.txt",
    "after_optimizations-live-range.txt": "live-range.txt",
    "after_optimizations-memory-usage-report.txt": "memory-usage-report.txt",
}
"""The endings of XLA's file names, and our names in the folder `xla`."""

_OF_LIVE_RANGES = (
    "after_optimizations-buffer-assignment.txt",
    "after_optimizations-live-range.txt",
    "after_optimizations.txt",
)

Compile = Callable[[Any, Mapping[str, str | int | bool]], Any]
"""Compiles a module with these options beside the program's own."""


class XlaFiles:
    """The files that XLA writes in the compiles of one program.

    Attributes:
      given: all options of XLA that the program has, those for the files included, by name.
      newest: the files of the newest compile.
    """

    def __init__(self, given: Mapping[str, str], module: str) -> None:
        self._module = module
        theirs = given.get(DUMP_TO, "")
        self._is_ours = theirs in ("", "-")
        self._folder = Path(tempfile.mkdtemp(prefix="hloom-xla-") if self._is_ours else theirs)
        self._new: dict[int, list[Path]] = {}
        self.newest: list[Path] = []
        self.given = {**given, DUMP_TO: str(self._folder)}

    def watch(self, compile_: Compile) -> Compile:
        """Returns the compile with XLA writing its files."""

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
            self.newest = self._new[id(executable)] = sorted(self._listing() - before)
            return executable

        return watched

    def of(self, executable: Any) -> dict[str, Content]:
        """Returns XLA's files about an executable, by name in the module's folder."""
        new = self._new.get(id(executable), ())
        found: dict[str, Content] = {}
        for ending, name in _KEPT.items():
            if file := self._largest(new, ending):
                # Files in the user's own folder stay there.
                found[f"xla/{name}"] = file if self._is_ours else file.read_bytes()
        return found

    def live_ranges_in(self, files: Sequence[Path]) -> dict[str, object] | None:
        """Returns the live ranges by the files of one compile; None where a file is missing."""
        found = [self._largest(files, ending) for ending in _OF_LIVE_RANGES]
        texts = [file.read_text("utf-8", "replace") for file in found if file is not None]
        return live_ranges(*texts) if len(texts) == len(found) else None

    def _largest(self, files: Sequence[Path], ending: str) -> Path | None:
        """Returns the largest file with an ending, which is the step's: others are programs that
        autotuning tried."""
        name_part = f".{self._module}."
        found = [
            file
            for file in files
            if name_part in file.name and file.name.endswith((f".{ending}", f"_{ending}"))
        ]
        return max(found, key=lambda file: file.stat().st_size, default=None)

    def close(self) -> None:
        """Deletes the files that are not kept."""
        if self._is_ours:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _listing(self) -> set[Path]:
        return set(self._folder.glob("*.txt"))


LIVE_RANGES, THUNKS = "live ranges", "thunk sequence"
"""The names in `missing` of files that only a compile writes."""


def write_artifacts(executable: Any, folder: Path) -> tuple[Missing, ...]:
    """Writes XLA's facts about an executable to `folder`/xla; returns what is missing.

    Raises OSError where a file cannot be written.
    """
    target = folder / "xla"
    target.mkdir(exist_ok=True)
    missing = []
    for what, part in (
        ("optimised HLO", _write_hlo),
        ("memory figures", _write_memory),
        (LIVE_RANGES, _write_live_ranges),
    ):
        try:
            part(executable, target)
        except OSError:
            raise
        except Exception as error:
            missing.append(Missing(what, f"XLA does not tell: {type(error).__name__}: {error}"))
    return tuple(missing)


def missing_texts(
    folder: Path, facts: ModuleFacts | None, listed: Collection[Missing]
) -> list[Missing]:
    """Returns the texts of XLA that a module folder lacks and ``listed`` does not name yet.

    `facts` are None where nothing was kept of the module at its compile.
    """
    remedies = {LIVE_RANGES: "", THUNKS: ""}
    if facts is None:
        why = "XLA writes it at a compile only, and only where it is asked to"
        remedies[THUNKS] = "`hloom capture 00-input.mlir` compiles the module again and shows it"
    elif facts.manifest.get("compile", {}).get("cache_hit"):
        why = "the executable came from JAX's persistent cache, and XLA did not compile"
        remedies = dict.fromkeys(remedies, "compile it anew: JAX_ENABLE_COMPILATION_CACHE=0")
    else:
        why = "XLA wrote none"
    if facts is not None and facts.platform == "cpu":
        del remedies[THUNKS]  # XLA:CPU has no thunk sequence to write
    files = {LIVE_RANGES: "live-range.txt", THUNKS: "thunk_sequence.txt"}
    return [
        Missing(what, why, remedy)
        for what, remedy in remedies.items()
        if not (folder / "xla" / files[what]).exists()
        and not any(what in each.what for each in listed)
    ]


def write_file(file: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8. Raises OSError, and then leaves no partial file."""
    if isinstance(content, str):
        # Bytes that XLA took from a file name, and that are no UTF-8.
        content = content.encode("utf-8", "surrogateescape")
    try:
        file.write_bytes(content)
    except OSError:
        file.unlink(missing_ok=True)
        raise


def _write_hlo(executable: Any, target: Path) -> None:
    write_file(target / "optimized_hlo.txt", optimized_text(executable))


def _write_memory(executable: Any, target: Path) -> None:
    code_bytes = generated_code_bytes(executable)
    if code_bytes is None:
        raise LookupError("this backend has no memory figures")
    memory = {name: size or 0 for name, size in asdict(memory_figures(executable)).items()}
    step_bytes = memory["argument_bytes"] + memory["output_bytes"] + memory["temp_bytes"]
    memory["step_bytes"] = step_bytes - memory["alias_bytes"]
    memory["generated_code_bytes"] = code_bytes
    write_file(target / "memory.json", json_text(memory))


def _write_live_ranges(executable: Any, target: Path) -> None:
    texts = [target / name for name in ("buffer-assignment.txt", "live-range.txt")]
    if all(file.exists() for file in texts):
        assignment, ranges = (file.read_text("utf-8", "replace") for file in texts)
        found = live_ranges(assignment, ranges, optimized_text(executable))
        write_file(target / "live_ranges.json", json_text(found))
