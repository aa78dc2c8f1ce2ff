"""The files that a command writes where its user says."""

from __future__ import annotations

from pathlib import Path

from hloom.files import FileError, write_whole

STANDARD_OUTPUT = Path("-")
"""As a file's name: what is written is all that a command prints."""

JSON_HELP = "write every number here; - for standard output, with nothing else on it"


class OutputError(ValueError):
    """A file cannot be written; the text says which, why, and the remedy."""


def write_told(file: Path, data: bytes) -> str:
    """Writes a file whole and gives the line that says so. Raises OutputError."""
    try:
        write_whole(file, data)
    except FileError as error:
        raise OutputError(f"{error}. Remove it, or name another file.") from error
    except OSError as error:
        raise OutputError(f"{file} cannot be written: {error.strerror or error}.") from error
    return f"wrote {file}"
