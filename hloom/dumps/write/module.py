"""Writes one module folder: the module's states, plans, XLA's files, arrays, and the manifest.

The manifest is written last: a folder without one is incomplete.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom._jax import executables
from hloom._jax.modules import make_context
from hloom.dumps.collect.store import Content, LiveModule, ModuleFacts
from hloom.dumps.collect.tracer import Execution
from hloom.dumps.collect.xla_files import missing_texts, write_artifacts, write_file
from hloom.dumps.format import INPUT, MANIFEST, Missing, plain_name
from hloom.dumps.write.atomic_dirs import claim, new_staging
from hloom.dumps.write.manifest import (
    NO_INPUT,
    flags,
    input_facts,
    values_of,
    versions,
    write_manifest,
)
from hloom.passes.framework.errors import reason_of
from hloom.passes.framework.structure import written
from hloom.policy import first_time, warn

_BYTECODE = b"ML\xefR"
"""The first bytes of MLIR bytecode."""


def write_module(live: LiveModule, executable: Any | None, root: Path | None) -> Path | None:
    """Writes a module at its compile, to a new folder under `root`, and returns the folder.

    The folder is written whole or not at all. Returns None, with one warning, where it cannot be
    written.

    Args:
      live: the facts of the module.
      executable: XLA's executable; None where XLA made none.
      root: a folder, created where it does not exist; None for the system's temporary one.
    """
    stem = plain_name(live.facts.name)
    try:
        if root is None:
            staging = Path(tempfile.mkdtemp(prefix=f"hloom-{stem}-"))
        else:
            root.mkdir(parents=True, exist_ok=True)
            staging = new_staging(root, stem)
        try:
            _fill(staging, Execution(live.facts.name, executable, live), None)
            return staging if root is None else claim(staging, lambda n: root / f"{stem}-{n}")
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    except OSError as error:
        if first_time(f"dump {root}"):
            warn(f"hloom cannot write the dump of a module: {error}")
        return None


def write_execution(execution: Execution, folder: Path, *, step: int) -> str | None:
    """Creates `folder`, and writes to it a module that ran in a step. Raises OSError.

    The manifest's "missing" lists what it lacks. Returns why its arrays cannot be written; None
    where they were written.
    """
    folder.mkdir()
    return _fill(folder, execution, step)


def _fill(folder: Path, ran: Execution, step: int | None) -> str | None:
    """Writes all files of a module into an empty folder; `step` is None at its compile."""
    live, executable = ran.kept, ran.executable
    bare = ModuleFacts(ran.name, jax.default_backend(), manifest={"spec": "", "passes": []})
    facts = live.facts if live else bare
    told, missing = _write_files(folder, live.files if live else {})
    missing = [*ran.missing, *(live.missing if live else ()), *missing]
    if executable is not None:
        missing += write_artifacts(executable, folder)
    failed = None
    for kind, snapshot in (("arguments", ran.arguments), ("results", ran.results)):
        if snapshot is None:
            continue
        missing += snapshot.missing
        try:
            snapshot.write(folder / kind)
        except Exception as problem:
            # Arrays fill a disk. All other files are small, and fit after the arrays are deleted.
            shutil.rmtree(folder / kind, ignore_errors=True)
            failed = failed or reason_of(problem)
            missing.append(Missing(kind, f"they cannot be written: {reason_of(problem)}"))
    if executable is not None:
        # The kept module has the better reason for a missing file.
        missing += missing_texts(folder, live.facts if live else None, missing)
    for kind, names in (("arguments", facts.arguments), ("results", facts.results)):
        told[kind] = values_of(names, told[kind], kind[:-1])
    write_manifest(
        folder,
        "module",
        module=ran.name,
        step=step,
        process=jax.process_index(),
        versions=versions() | {"xla": executable and executables.xla_version(executable)},
        flags=flags(),
        platform=facts.platform,
        **facts.manifest,
        **told,
        error=ran.error,
        files=_sizes(folder),
        missing=written(missing),
    )
    return failed


def _write_files(
    folder: Path, files: Mapping[str, Content]
) -> tuple[dict[str, Any], list[Missing]]:
    """Writes the kept files of a module, bytecode as text. Raises OSError.

    Returns the facts in the input's text, and the files that cannot be read or parsed.
    """
    told, missing = dict(NO_INPUT), list[Missing]()
    if not files:
        return told, missing
    context = make_context()
    for name, content in sorted(files.items()):
        try:
            found = _read(content)
            is_bytecode = found.startswith(_BYTECODE)
            if name == INPUT or (name.endswith(".mlir") and is_bytecode):
                with context, ir.Location.unknown():
                    module = ir.Module.parse(found)
                    text = module.operation.get_asm(binary=True, enable_debug_info=True)
                    assert isinstance(text, bytes)
                    if name == INPUT:
                        told = input_facts(module, text.decode("utf-8", "replace"))
                found = text.rstrip(b"\n") + b"\n" if is_bytecode else found
        except Exception as error:
            reason = f"what was kept of it cannot be read: {type(error).__name__}: {error}"
            missing.append(Missing("input" if name == INPUT else name, reason))
            continue
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, found)
    return told, missing


def _read(content: Content) -> bytes:
    if isinstance(content, Path):
        return content.read_bytes()
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content


def _sizes(folder: Path) -> dict[str, dict[str, int]]:
    """Returns the manifest's "files"."""
    return {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != MANIFEST
    }
