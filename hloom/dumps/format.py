"""The files of dumps: names, JSON, and what of them is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloom import files

FORMAT = 3
"""The number of "hloom_dump" in the manifests that this hloom writes."""

MANIFEST = "manifest.json"
INPUT = "00-input.mlir"
RAN = "ran.json"
"""The file with the record of a run of a step in several programs."""

_LONGEST_NAME = 100
"""The most characters of a module's name in its folder's name: file systems allow 255 bytes."""


@dataclass(frozen=True)
class Missing:
    """A part that a dump lacks, or has only in part.

    Attributes:
      what: the part, e.g. "thunk sequence".
      why: the reason, e.g. "the executable came from JAX's persistent cache".
      remedy: the remedy; empty where none exists.
      where: the folder that it belongs to, relative to the dump's; empty for the dump itself.
    """

    what: str
    why: str
    remedy: str = ""
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"{place}{self.what}: {self.why}{remedy}"


def plain_name(name: str) -> str:
    """Returns a module's name in a form that a folder can have."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:_LONGEST_NAME] or "module"


def json_text(value: object, *, default: Callable[[Any], object] | None = None) -> str:
    """Returns values as the text of a dump's JSON file; `default` converts what JSON lacks."""
    return json.dumps(value, indent=2, sort_keys=True, default=default) + "\n"


def read_json(file: Path) -> Any:
    """Returns the content of a file; None where it does not exist, or is refused."""
    try:
        return files.read_json(file.parent, file.name)
    except OSError:
        return None
