"""The source lines that a module's locations name, so that a dump can be read elsewhere."""

from __future__ import annotations

import hashlib
import json
import linecache
import re
from collections.abc import Mapping
from pathlib import Path

MAX_LINES = 5000
"""Over all files. A GPT of 12 layers unrolled names 800 (measured 2026-11-21)."""

MAX_LINE_LENGTH = 500
"""In characters; generated code has longer ones, which nobody reads."""

_LOCATION = re.compile(r'("(?:[^"\\\n]|\\.)*"):(\d+):\d+')


def sources(text: str) -> dict[str, object]:
    """The lines that the locations of a module's text name, by file, as they are now.

    A file that cannot be read, one on another machine for example, has neither a hash nor lines.
    Over `MAX_LINES` the rest is left out.
    """
    named: dict[str, set[int]] = {}
    for count, (file, line) in enumerate(_named(text)):
        if count == MAX_LINES:
            break
        named.setdefault(file, set()).add(line)
    return {file: _lines(file, sorted(lines)) for file, lines in sorted(named.items())}


def _named(text: str) -> list[tuple[str, int]]:
    """Each place once, in the order of the text."""
    found = {(match[1], int(match[2])): None for match in _LOCATION.finditer(text)}
    return [(_unquoted(file), line) for file, line in found]


def _unquoted(quoted: str) -> str:
    try:
        # MLIR's escapes of the characters that paths have are those of JSON.
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]


def _lines(file: str, numbers: list[int]) -> Mapping[str, object]:
    # A notebook's cells are in this cache and nowhere else.
    linecache.checkcache(file)
    lines = {str(n): linecache.getline(file, n).rstrip("\n")[:MAX_LINE_LENGTH] for n in numbers}
    return {"sha256": _sha256(file), "lines": {n: line for n, line in lines.items() if line}}


def _sha256(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, ValueError):
        text = "".join(linecache.getlines(file))
        return hashlib.sha256(text.encode()).hexdigest() if text else None
