"""The results' file: written whole after every item, so that what is done is never lost."""

from __future__ import annotations

import json
import os
import re
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.common.tables import as_json
from benchmarks.gpu.items import FINAL, Entry, Known

DRY_RUN = "dry run"
"""In the place of a device's name."""


def file_name(device: str) -> str:
    """Of the results of a device, e.g. "gpu_nvidia_h200.json"."""
    return f"gpu_{re.sub('[^a-z0-9]+', '_', device.lower()).strip('_')}.json"


class Store:
    """One device's results with one version of JAX; those of other versions stay in the file.

    The file: by version of JAX, `machine` (what it ran on), `parts` (by number, when, and whether
    nothing is left) and `items` (by name, how each ended).
    """

    def __init__(self, folder: Path, machine: dict[str, Any], seed: Path | None = None) -> None:
        """Goes on with the folder's file, else with the file `seed` where one is given.

        Raises ValueError where that file is not one of results.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / file_name(machine["device"])
        self._lock = threading.Lock()
        self._report: dict[str, Any] = {}
        for file in filter(None, (self.file, seed)):
            if file.exists():
                self._report = _read(file)
                break
        entry = self._report.setdefault(str(machine["jax"]), {})
        entry["machine"] = machine
        self._entry: dict[str, Any] = entry
        self._parts: dict[str, Any] = entry.setdefault("parts", {})
        self._items: dict[str, Entry] = entry.setdefault("items", {})
        self.write()

    @property
    def report(self) -> dict[str, Any]:
        """The whole file, as read by `json`."""
        return self._report

    @property
    def known(self) -> Known:
        return self._items

    def is_done(self, name: str) -> bool:
        """Whether an item ended by itself, however that was."""
        return self._items.get(name, {}).get("status") in FINAL

    def add(self, name: str, entry: Entry) -> None:
        """Keeps how an item ended. Thread-safe."""
        with self._lock:
            self._items[name] = entry
            self._write()

    def note_part(self, number: int, **facts: Any) -> None:
        """Keeps what is to be said of a part."""
        with self._lock:
            self._parts.setdefault(str(number), {}).update(facts)
            self._write()

    def forget(self, pattern: str) -> list[str]:
        """Drops the items whose names match a pattern of the shell's; gives their names."""
        with self._lock:
            names = [name for name in self._items if fnmatchcase(name, pattern)]
            for name in names:
                del self._items[name]
            self._write()
            return names

    def write(self) -> None:
        with self._lock:
            self._write()

    def _write(self) -> None:
        new = self.file.with_suffix(".new")
        with open(new, "w", encoding="utf-8") as stream:
            stream.write(as_json(self._report))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, self.file)


def _read(file: Path) -> dict[str, Any]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        if not all("items" in entry for entry in report.values()):
            raise ValueError("an entry without items")
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{file} is not a file of this benchmark's results ({error}): move it away, or give "
            "another --out"
        ) from None
    found: dict[str, Any] = report
    return found
