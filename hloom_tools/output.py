"""Writes a command's output files."""

from __future__ import annotations

import json
from pathlib import Path

from hloom.files import FileError, write_whole

STANDARD_OUTPUT = Path("-")
"""The file name for standard output, where the file's content is then all that a command prints."""

JSON_HELP = "write every number here; - for standard output, with nothing else on it"


class OutputError(ValueError):
    """A file cannot be written; the text says which, why, and the remedy."""


def write_told(file: Path, data: bytes) -> str:
    """Writes a file atomically and returns the line that reports it. Raises OutputError."""
    try:
        write_whole(file, data)
    except FileError as error:
        raise OutputError(f"{error}. Remove it, or name another file.") from error
    except OSError as error:
        raise OutputError(f"{file} cannot be written: {error.strerror or error}.") from error
    return f"wrote {file}"


def write_json(file: Path, told: object) -> None:
    """Writes a command's result as JSON, or prints it where the file is `STANDARD_OUTPUT`; the
    command then prints its other output elsewhere. Raises OSError, and FileError where something
    other than a file has the name."""
    text = json.dumps(told, indent=2) + "\n"
    if file == STANDARD_OUTPUT:
        print(text, end="")
    else:
        write_whole(file, text.encode())
