"""Reads one module folder of a dump."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hloom import files
from hloom.dumps.format import INPUT, MANIFEST, RAN, Missing, read_json

_NUMBERED = re.compile(r"(.*)-(\d+)")
_PROCESS = re.compile(r"\.?process-(\d+)(?:\.partial)?")
_STATE = re.compile(r"(\d{2,})-(?:(before|after)-)?([A-Za-z0-9_.-]+)\.mlir")
_PLAN = re.compile(r"plan-(\d{2,})-([A-Za-z0-9_.-]+)\.json")


@dataclass(frozen=True)
class State:
    """The module at one place in the pipeline, e.g. labelled "input", "before remat", "after
    lowering".

    `index` is the number of the pass in the pipeline, from 1; 0 for the input.
    """

    label: str
    index: int
    file: Path

    @property
    def text(self) -> str:
        """Reads the file. Raises FileError where it must not be read, and OSError."""
        return files.read_text(self.file.parent, self.file.name)

    @property
    def size_bytes(self) -> int:
        """Returns the size of the file; 0 where it no longer exists."""
        with suppress(OSError):
            return self.file.lstat().st_size
        return 0


@dataclass(frozen=True)
class PlanFile:
    """The plan of a pass, from `Plan.to_json`; `index` is that of `State`."""

    name: str
    index: int
    json: dict[str, Any]


@dataclass(frozen=True)
class ModuleDump:
    """One module folder.

    Attributes:
      folder: its path.
      manifest: the content of its manifest.json; empty where none can be read.
      missing: the parts that it lacks.
      refused: the files refused so far, with the reasons.
    """

    folder: Path
    manifest: dict[str, Any]
    missing: tuple[Missing, ...]
    refused: dict[str, Missing] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Returns the module's name, e.g. "jit_step"."""
        numbered = _NUMBERED.fullmatch(self.folder.name)
        return str(self.manifest.get("module") or (numbered or [0, self.folder.name])[1])

    @property
    def process(self) -> int:
        """Returns the index of the process that wrote it."""
        return whole_number(self.manifest, "process") or 0

    @property
    def step(self) -> int | None:
        """Returns the step that it ran in; None for one that was written at its compile."""
        return whole_number(self.manifest, "step")

    @property
    def spec(self) -> str:
        """Returns the pipeline that ran, as a spec; empty where hloom was off, or unknown."""
        return str(self.manifest.get("spec") or "")

    @property
    def input_file(self) -> Path | None:
        """Returns the module as JAX passed it to the compile; None where it was not kept."""
        file = self.folder / INPUT
        return file if is_own_file(file) else None

    @cached_property
    def states(self) -> tuple[State, ...]:
        """Returns the module's states that were written, the input first."""
        listed = filter(is_own_file, self.folder.glob("*.mlir"))
        found = [
            (int(match[1]), match[2] or "", match[3], file)
            for file in listed
            if (match := _STATE.fullmatch(file.name))
        ]
        # A state before a pass sorts before the one after it.
        found.sort(key=lambda each: (each[0], each[1] != "before", each[2]))
        return tuple(State(f"{when} {name}".strip(), n, file) for n, when, name, file in found)

    @cached_property
    def planned(self) -> tuple[PlanFile, ...]:
        """Returns the plans in the order of the passes."""
        return self._planned("")

    def planned_for(self, attempt: int) -> tuple[PlanFile, ...]:
        """Returns the plans of an attempt, from 1, that was not used; those of the used one are
        `planned`.

        Only the measured pass and later ones have such plans.
        """
        return self._planned(f"attempt-{attempt}/")

    @cached_property
    def attempts(self) -> list[dict[str, Any]]:
        """Returns the attempts of a measured pass, in order; empty where it tried just one plan."""
        attempts = self.json("attempts.json")
        # An attempt's number is its index, so that a damaged entry keeps its place.
        listed = attempts if isinstance(attempts, list) else []
        return [each if isinstance(each, dict) else {} for each in listed]

    @cached_property
    def captured(self) -> dict[str, Any] | None:
        """Returns the facts on its CUDA graphs, written from `Captured`; None without regions."""
        return self._object("captured.json")

    @cached_property
    def sent(self) -> dict[str, Any] | None:
        """Returns the bytes that its devices exchange, written from `Sent`; None for one device."""
        return self._object("sent.json")

    @cached_property
    def ran(self) -> dict[str, Any] | None:
        """Returns the record of a run, as facts and tables; None unless it is a step in several
        programs."""
        return self._object(RAN)

    @cached_property
    def memory(self) -> dict[str, Any] | None:
        """Returns XLA's figures of one device, in bytes; None where the backend reported none."""
        return self._object("xla/memory.json")

    @cached_property
    def live_ranges(self) -> dict[str, Any] | None:
        """Returns the live ranges of values in XLA's schedule; None where unknown."""
        return self._object("xla/live_ranges.json")

    def live_ranges_of(self, attempt: int) -> dict[str, Any] | None:
        """Returns the live ranges of an attempt, from 1, that was not used: known for the original
        program."""
        return self._object(f"attempt-{attempt}/xla/live_ranges.json")

    @property
    def failure(self) -> str | None:
        """Returns why a pass failed on it; None where none did."""
        return self.text("failure.txt")

    def text(self, name: str) -> str | None:
        """Returns the text of a file of the folder, e.g. "xla/optimized_hlo.txt", or None."""
        return self._read(name, files.read_text)

    def json(self, name: str) -> Any:
        """Returns the values of a JSON file of the folder; None where it is missing or refused."""
        return self._read(name, files.read_json)

    def array_folders(self, kind: str) -> tuple[Path, ...]:
        """Returns the folders with the shares of its "arguments" or "results", its own first."""
        folders = [each / kind for each in self.sibling_folders]
        return tuple(folder for folder in folders if is_own_folder(folder))

    @cached_property
    def sibling_folders(self) -> tuple[Path, ...]:
        """Returns the folders of this module in all processes of the step, its own first."""
        mine = process_number(self.folder.parent)
        if mine is None:
            return (self.folder,)
        siblings: dict[int, Path] = {}
        for process in folders_in(self.folder.parent.parent):
            number = process_number(process)
            # A folder that must not be read is in the dump's `missing`.
            with suppress(OSError):
                if number is not None and number != mine and (found := self._in_process(process)):
                    siblings[number] = found
        return (self.folder, *(folder for _, folder in sorted(siblings.items())))

    def _in_process(self, process: Path) -> Path | None:
        """Returns the module's folder in another process's folder, where its number may differ."""
        numbered = _NUMBERED.fullmatch(self.folder.name)
        stem = numbered[1] if numbered else self.folder.name
        for folder in [process / self.folder.name, *folders_in(process)]:
            if is_own_folder(folder) and folder.name.startswith(stem):
                theirs = read_json(folder / MANIFEST)
                digest = theirs.get("input_sha256") if isinstance(theirs, dict) else None
                if digest == self.manifest.get("input_sha256"):
                    return folder
        return None

    def _planned(self, under: str) -> tuple[PlanFile, ...]:
        matches = map(_PLAN.fullmatch, (f.name for f in (self.folder / under).glob("plan-*.json")))
        found = sorted((int(match[1]), match[2], match[0]) for match in matches if match)
        read = [(name, index, self.json(f"{under}{file}")) for index, name, file in found]
        return tuple(PlanFile(name, n, plan) for name, n, plan in read if isinstance(plan, dict))

    def _object(self, name: str) -> dict[str, Any] | None:
        value = self.json(name)
        return value if isinstance(value, dict) else None

    def _read(self, name: str, read: Callable[[Path, str], Any]) -> Any:
        try:
            return read(self.folder, name)
        except FileNotFoundError:
            return None
        except files.FileError as error:
            self.refused[name] = Missing(name, error.reason)
        except OSError as error:
            self.refused[name] = Missing(name, f"it cannot be read: {error.strerror}")
        return None


def process_number(folder: Path) -> int | None:
    """Returns the index of the process of a folder, complete or not; None where it is no
    process's."""
    named = _PROCESS.fullmatch(folder.name)
    return int(named[1]) if named else None


def folders_in(folder: Path) -> list[Path]:
    """Returns the folders in a folder, without links, step-9 before step-10. Raises OSError."""
    return sorted(filter(is_own_folder, folder.iterdir()), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def whole_number(manifest: Mapping[str, Any], name: str, default: int | None = None) -> int | None:
    """Returns a whole number in a manifest; the default where the entry is no such number."""
    value = manifest.get(name)
    return value if isinstance(value, int) else default


def is_own_file(file: Path) -> bool:
    """Whether the path is a regular file itself and not a link to one."""
    return file.is_file() and not file.is_symlink()


def is_own_folder(folder: Path) -> bool:
    """Whether the path is a folder itself and not a link to one."""
    return folder.is_dir() and not folder.is_symlink()
