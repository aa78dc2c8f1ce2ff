"""Reads dumps: complete ones, incomplete ones, and module folders without a manifest.

    DIR/step-3/process-0/jit_step-0/   a step of a run: one module folder for each module that ran
    DIR/jit_step-0/                    a module folder that was written when it was compiled

Missing or incomplete parts are no error: `missing` names each, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hloom import files
from hloom.dumps.format import FORMAT, INPUT, MANIFEST, Missing
from hloom.dumps.read.module import (
    ModuleDump,
    PlanFile,
    State,
    folders_in,
    is_own_file,
    process_number,
    whole_number,
)
from hloom.passes.framework.structure import StructureError, read

__all__ = ["Dump", "DumpError", "Missing", "ModuleDump", "PlanFile", "State", "open_dump"]

_CUT_OFF = "writing was cut off, or is not done yet"
_STEP = re.compile(r"step-(\d+)(?:-run-(\d+))?")


class DumpError(ValueError):
    """A folder is no dump, or contains several; the text says which, and the remedy."""


@dataclass(frozen=True)
class Dump:
    """The content of a folder.

    Attributes:
      path: the step, process or module folder, possibly one inside the requested folder.
      kind: "step", "process" or "module".
      step: the number of the step; None where the modules were written when they were compiled.
      processes: the indices of the processes whose folders exist.
      modules: the modules of all those processes.
      missing: the missing parts of the dump, those of the modules included.
      manifest: the folder's manifest; empty where none can be read.
    """

    path: Path
    kind: str
    step: int | None
    processes: tuple[int, ...]
    modules: tuple[ModuleDump, ...]
    missing: tuple[Missing, ...]
    manifest: dict[str, Any]


def open_dump(path: str | Path) -> Dump:
    """Opens a dump: the folder given as `to`, where it has just one step or module, or a folder in
    it.

    Raises DumpError where it finds no dump, or more than one.
    """
    inside = dumps_in(path)
    if len(inside) > 1:
        listed = _listed(inside)
        raise DumpError(f"{path} holds {len(inside)} dumps; give one of them: {listed}.")
    try:
        return _open(inside[0])
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from error


def dumps_in(path: str | Path) -> list[Path]:
    """Returns the folders of the steps or modules in the folder given as `to`; such a folder itself
    gives one.

    Raises DumpError where it finds none.
    """
    path = Path(path)
    try:
        if not path.exists():
            raise DumpError(f"{path} does not exist. {_REMEDY}")
        if not path.is_dir():
            raise DumpError(f"{path} is a file. Give the folder that it lies in.")
        if _kind(path) is not None:
            return [path]
        folders = folders_in(path)
        # A folder whose name starts with a dot is incomplete.
        inside = [each for each in folders if not each.name.startswith(".") and _is_dump(each)]
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from error
    if inside:
        return inside
    cut_off = ", ".join(child.name for child in folders if child.name.endswith(".partial"))
    why = f" Writing {cut_off} was cut off." if cut_off else ""
    raise DumpError(f"{path} holds no dump.{why} {_REMEDY}")


_REMEDY = "A dump is a folder that hloom.dump(to=...) or HLOOM_DUMP_TO named, or one inside it."


def _open(path: Path) -> Dump:
    kind = _kind(path)
    if kind == "step":
        return _open_step(path)
    if kind == "process":
        return _open_process(path)
    module = _module(path, "")
    processes = (module.process,)
    return Dump(path, "module", module.step, processes, (module,), module.missing, {})


def alike(modules: Iterable[ModuleDump]) -> list[list[ModuleDump]]:
    """Groups modules: equal ones of several processes are one group, in the order of the first."""
    groups: dict[tuple[object, ...], list[ModuleDump]] = {}
    seen: dict[tuple[object, ...], int] = {}
    for module in modules:
        content = str(module.manifest.get("input_sha256") or module.folder)
        same = (module.name, content, module.spec)
        turn = seen[(module.process, *same)] = seen.get((module.process, *same), 0) + 1
        groups.setdefault((turn, *same), []).append(module)
    return list(groups.values())


def _listed(folders: Sequence[Path], most: int = 20) -> str:
    names = [str(folder) for folder in folders[:most]]
    more = len(folders) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _is_dump(path: Path) -> bool:
    """Whether a folder is a step or a module, by its name alone where it must not be read."""
    try:
        return _kind(path) in ("step", "module")
    except DumpError:
        return True  # of another format: opening it says so
    except OSError:
        # Opening it reports the reason.
        return _STEP.fullmatch(path.name) is not None


def _kind(path: Path) -> str | None:
    """Returns "step", "process" or "module" for a folder of a dump; None for another folder."""
    manifest, _ = _manifest(path)
    kind = manifest.get("kind")
    if kind in ("step", "process", "module"):
        return str(kind)
    if process_number(path) is not None:
        return "process"
    if any(path.glob("[0-9][0-9]-*.mlir")):
        return "module"
    if _STEP.fullmatch(path.name) or any(
        process_number(child) is not None for child in folders_in(path)
    ):
        return "step"
    return None


def _open_step(path: Path) -> Dump:
    manifest, missing = _manifest(path)
    named = _STEP.fullmatch(path.name)
    step = whole_number(manifest, "step", int(named[1]) if named else None)
    # An incomplete folder sorts before the complete one, which replaces it.
    inside = [(process_number(child), child) for child in folders_in(path)]
    folders = {number: child for number, child in inside if number is not None}
    opened = []
    for number, folder in sorted(folders.items()):
        try:
            dump = _open_process(folder)
        except OSError as error:
            missing += (_unreadable(f"process {number}", folder, error),)
        else:
            opened.append(dump)
            missing += tuple(_within(each, folder.name) for each in dump.missing)
    missing += tuple(_absent(folders, whole_number(manifest, "processes") or 0))
    modules = tuple(module for dump in opened for module in dump.modules)
    processes = tuple(process for dump in opened for process in dump.processes)
    return Dump(path, "step", step, processes, modules, missing, manifest)


def _absent(folders: Collection[int], expected: int) -> Iterator[Missing]:
    """Yields the processes without a folder, of those that the manifest expects."""
    without = (process for process in range(expected) if process not in folders)
    for process in islice(without, _MOST_ABSENT):
        yield Missing(
            f"process {process}",
            f"{_CUT_OFF}, the process did not run the step, or it wrote to another disk",
            f"copy its folder process-{process} here, if it is elsewhere",
        )
    more = expected - sum(number < expected for number in folders) - _MOST_ABSENT
    if more > 0:
        yield Missing("further processes", f"the manifest tells of {more:,} more")


_MOST_ABSENT = 20
"""The most missing processes that are listed one by one."""


def _unreadable(what: str, folder: Path, error: OSError) -> Missing:
    reason = f"{folder.name} cannot be read: {error.strerror or error}"
    return Missing(what, reason, "give yourself the right to read it")


def _open_process(path: Path) -> Dump:
    manifest, missing = _manifest(path)
    if path.name.endswith(".partial"):
        missing += (Missing("the rest", _CUT_OFF),)
    there = {folder.name: folder for folder in folders_in(path) if not folder.name.startswith(".")}
    for entry in _entries(manifest.get("modules")):
        name = str(entry.get("folder"))
        if name not in there:
            missing += (Missing(f"module {name}", _CUT_OFF),)
    modules = []
    for name, folder in there.items():
        try:
            modules.append(_module(folder, name))
        except OSError as error:
            missing += (_unreadable(f"module {name}", folder, error),)
    missing += tuple(each for module in modules for each in module.missing)
    process = process_number(path) or 0
    step = whole_number(manifest, "step")
    return Dump(path, "process", step, (process,), tuple(modules), missing, manifest)


def _within(missing: Missing, folder: str) -> Missing:
    where = f"{folder}/{missing.where}" if missing.where else folder
    return Missing(missing.what, missing.why, missing.remedy, where)


def _module(folder: Path, where: str) -> ModuleDump:
    manifest, missing = _manifest(folder)
    listed = manifest.get("files")
    for name, facts in sorted(listed.items() if isinstance(listed, dict) else ()):
        if isinstance(facts, dict):
            missing += _damage(folder, name, whole_number(facts, "bytes"))
    told = any(each.what in (INPUT, "input") or "states" in each.what for each in missing)
    if not told and not is_own_file(folder / INPUT):
        missing += (Missing("input", f"there is no {INPUT}"),)
    found = tuple(_within(each, where) if where else each for each in missing)
    return ModuleDump(folder, manifest, found)


def _damage(folder: Path, name: str, expected_bytes: int | None) -> tuple[Missing, ...]:
    try:
        size_bytes = files.size_of(folder, name)
    except files.FileError as error:
        return (Missing(name, error.reason),)
    except OSError:
        return (Missing(name, "the file is not there, but the manifest names it"),)
    if expected_bytes is None or size_bytes == expected_bytes:
        return ()
    return (Missing(name, f"the file has {size_bytes} bytes of {expected_bytes}"),)


def _manifest(folder: Path) -> tuple[dict[str, Any], tuple[Missing, ...]]:
    """Reads the manifest of a folder, and its list of missing parts. Raises DumpError."""
    try:
        manifest = files.read_json(folder, MANIFEST)
        why = "it cannot be read as JSON"
    except FileNotFoundError:
        manifest, why = None, f"there is none: {_CUT_OFF}, or hloom was older"
    except files.FileError as error:
        manifest, why = None, error.reason
    if not isinstance(manifest, dict):
        return {}, (Missing(MANIFEST, why),)
    number = manifest.get("hloom_dump")
    if isinstance(number, int) and number != FORMAT:
        raise DumpError(
            f"{folder / MANIFEST} is of format {number}; this hloom reads format {FORMAT}. "
            f"{'A newer' if number > FORMAT else 'An older'} hloom wrote it: read it with that one."
        )
    return manifest, tuple(_told_missing(manifest.get("missing")))


def _told_missing(listed: Any) -> Iterator[Missing]:
    """Yields the missing files that a manifest lists, without malformed entries."""
    for entry in _entries(listed):
        with suppress(StructureError):
            yield read(Missing, entry)


def _entries(value: Any) -> list[dict[str, Any]]:
    """Returns the objects of a list in a manifest; other values are left out."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
