"""Writes one module folder: the module's states, plans, XLA's side, arrays, and the manifest.

The manifest comes last: a folder without one was cut off.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax.extend.mlir import ir

from hloom._jax import executables
from hloom._jax.modules import make_context
from hloom.dumps.collect.store import Content, LiveModule
from hloom.dumps.read.module import INPUT, MANIFEST, Missing, plain_name
from hloom.dumps.write.artifacts import missing_texts, write_artifacts, write_file
from hloom.dumps.write.atomic_dirs import claim, new_half
from hloom.dumps.write.manifest import InputFacts, module_manifest, write_manifest
from hloom.passes.framework.errors import reason_of
from hloom.policy import first_time, warn

if TYPE_CHECKING:
    from hloom.dumps.collect.arrays import Snapshot
    from hloom.dumps.collect.tracer import Execution

_BYTECODE = b"ML\xefR"
"""What MLIR bytecode begins with."""


def write_module(live: LiveModule, executable: Any | None, root: Path | None) -> Path | None:
    """Writes a module at its compile, to a new folder under `root`, and gives the folder.

    The folder is there whole or not at all. None, and one warning, where it cannot be written.

    Args:
      live: what is known of the module.
      executable: what XLA made of it; None where it made nothing.
      root: a folder, made where it does not exist; None for the system's temporary one.
    """
    stem = plain_name(live.facts.name)
    try:
        if root is None:
            half = Path(tempfile.mkdtemp(prefix=f"hloom-{stem}-"))
        else:
            root.mkdir(parents=True, exist_ok=True)
            half = new_half(root, stem)
        try:
            fill(half, live.facts.name, live, executable)
            if root is None:
                return half
            return claim(half, lambda number: root / f"{stem}-{number}")
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise
    except OSError as error:
        if first_time(f"dump {root}"):
            warn(f"hloom cannot write the dump of a module: {error}")
        return None


def write_execution(execution: Execution, folder: Path, *, step: int) -> str | None:
    """Writes a module that ran in a step to `folder`, which is made. Raises OSError.

    What of it cannot be told is in the manifest's "missing". Gives why its arrays cannot be
    written; None where all is well.
    """
    folder.mkdir()
    return fill(
        folder,
        execution.name,
        execution.kept,
        execution.executable,
        step=step,
        error=execution.error,
        missing=execution.missing,
        arrays={"arguments": execution.arguments, "results": execution.results},
    )


def fill(
    folder: Path,
    name: str,
    live: LiveModule | None,
    executable: Any | None,
    *,
    step: int | None = None,
    error: str | None = None,
    missing: tuple[Missing, ...] = (),
    arrays: Mapping[str, Snapshot | None] | None = None,
) -> str | None:
    """Writes all of a module into a folder that is there and empty. Raises OSError.

    Gives why arrays cannot be written; None where there are none, or all is well.
    """
    files = _Files(folder)
    missing += live.missing if live else ()
    missing += files.write(live.files if live else {})
    xla_version = None
    if executable is not None:
        missing += write_artifacts(executable, folder)
        xla_version = executables.xla_version(executable)
    failed = None
    for kind, snapshot in (arrays or {}).items():
        if snapshot is not None:
            # They are what fills a disk. All else of the module is small, and there is room again.
            try:
                missing += _write_arrays(snapshot, folder / kind)
            except _ArraysError as reason:
                failed = failed or str(reason)
                missing += (*snapshot.missing, Missing(kind, f"they cannot be written: {reason}"))
    if executable is not None:
        # Whoever kept the module knows better why something is not there.
        missing += tuple(missing_texts(folder, live.facts.platform if live else None, missing))
    manifest = module_manifest(
        name=name,
        step=step,
        facts=live.facts if live else None,
        told=files.told,
        xla_version=xla_version,
        error=error,
        missing=missing,
        files=_sizes(folder),
    )
    write_manifest(folder, manifest)
    return failed


class _ArraysError(Exception):
    """The arrays of a module cannot be written; the text says why."""


class _Files:
    """Writes what was kept of one module; bytecode as text.

    Attributes:
      told: what the input's text tells; empty as long as it was not written.
    """

    def __init__(self, folder: Path) -> None:
        self.told = InputFacts()
        self._folder = folder

    def write(self, files: Mapping[str, Content]) -> tuple[Missing, ...]:
        """Writes the files; gives those that cannot be read or understood. Raises OSError."""
        context = make_context() if files else None
        missing = []
        for name, content in sorted(files.items()):
            try:
                found = _read(content)
                if context is not None and name.endswith(".mlir"):
                    found = self._text(name, found, context)
            except Exception as error:
                reason = f"what was kept of it cannot be read: {type(error).__name__}: {error}"
                missing.append(Missing("input" if name == INPUT else name, reason))
                continue
            file = self._folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, found)
        return tuple(missing)

    def _text(self, name: str, content: bytes, context: ir.Context) -> bytes:
        if name != INPUT and not content.startswith(_BYTECODE):
            return content
        with context, ir.Location.unknown():
            module = ir.Module.parse(content)
            text = module.operation.get_asm(binary=True, enable_debug_info=True)
            assert isinstance(text, bytes)
            if name == INPUT:
                self.told = InputFacts.read(module, text.decode("utf-8", "replace"))
        return text.rstrip(b"\n") + b"\n" if content.startswith(_BYTECODE) else content


def _read(content: Content) -> bytes:
    if isinstance(content, Path):
        return content.read_bytes()
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content


def _write_arrays(snapshot: Snapshot, folder: Path) -> tuple[Missing, ...]:
    """Writes arrays to a folder of that kind. Raises _ArraysError, and leaves nothing then."""
    try:
        snapshot.write(folder)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _ArraysError(reason_of(error)) from error
    return snapshot.missing


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file in the folder, by name."""
    return {
        str(file.relative_to(folder)): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != MANIFEST
    }
