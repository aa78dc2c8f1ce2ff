"""Reads untrusted files, and writes files atomically.

People send each other dumps. So only regular files of a dump are opened, links are not followed,
and reading is bounded: in bytes, in the nesting of JSON and in the size of its numbers. A refused
file raises `FileError`, whose text gives the reason in one line.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MOST_JSON_BYTES = 64 * 2**20
"""The largest JSON file; parsed it takes some ten times as much memory."""

MOST_TEXT_BYTES = 2**30
"""The largest other text file."""

MOST_NESTED = 100
"""The deepest nesting of lists and objects: a plan's loop nest takes two levels a loop."""

_MOST_DIGITS = 30
"""The most digits of a whole number: real counts of bytes or FLOPs have far fewer."""

_KINDS = {
    stat.S_IFLNK: "a link, and what lies elsewhere is not read",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


class FileError(OSError):
    """A file that is not what it should be.

    Attributes:
      name: the file's path relative to the folder that was searched.
      reason: the reason, e.g. "it is a FIFO".
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


def is_plain(name: str) -> bool:
    """Whether a name is a path inside of a folder: relative, without "." and ".."."""
    parts = name.split("/")
    return "\0" not in name and not any(part in ("", ".", "..") for part in parts)


def read_bytes(folder: Path, name: str, *, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """Returns the content of a file in a folder, or in one below it.

    The folder itself may be a link; nothing below it may be one. Raises FileError where the file
    must not be read, and other OSErrors, e.g. where it does not exist.
    """
    with _opened(folder, name) as stream:
        return _content(stream, name, most_bytes)


def read_part(folder: Path, name: str, offset: int, size_bytes: int) -> bytes:
    """Returns `size_bytes` bytes of a file from an offset on; raises as `read_bytes` does.

    Raises FileError also where the file ends before them.
    """
    with _opened(folder, name) as stream:
        # Read in pieces: the requested size may come from an untrusted file.
        if offset + size_bytes > os.fstat(stream.fileno()).st_size:
            raise FileError(name, f"it ends before byte {offset + size_bytes}")
        stream.seek(offset)
        return stream.read(size_bytes)


def size_of(folder: Path, name: str) -> int:
    """Returns the size of a file that `read_bytes` would read; raises as that does."""
    return _place(folder, name).lstat().st_size


def read_given(file: Path) -> bytes:
    """Returns the content of a file that the user named; links in its path are followed.

    Raises as `read_bytes` does.
    """
    place = file.resolve()
    with _opened(place.parent, place.name) as stream:
        return _content(stream, file.name, MOST_TEXT_BYTES)


def as_text(content: bytes, name: str) -> str:
    """Decodes UTF-8 without NUL bytes. Raises FileError for anything else."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise FileError(name, "it is no text in UTF-8") from None
    if "\0" in text:
        raise FileError(name, "it has NUL bytes, and is no text")
    return text


def read_text(folder: Path, name: str) -> str:
    """Returns the text of a file in a folder; raises as `read_bytes` and `as_text` do."""
    return as_text(read_bytes(folder, name), name)


def read_json(folder: Path, name: str) -> Any:
    """Returns the values of a JSON file in a folder; raises as `read_bytes` does."""
    content = read_bytes(folder, name, most_bytes=MOST_JSON_BYTES)
    try:
        value = json.loads(
            content.decode(), parse_int=_whole, parse_float=_finite, parse_constant=_finite
        )
        if not _is_too_deep(value):
            return value
    except ValueError:
        raise FileError(name, "it cannot be read as JSON") from None
    except RecursionError:
        pass
    raise FileError(name, f"lists and objects stand more than {MOST_NESTED} deep in it")


def write_whole(file: Path, content: bytes) -> None:
    """Writes a file whole or not at all, never through a link or into something else.

    Raises FileError where something other than a regular file has its name, and OSError.
    """
    with suppress(FileNotFoundError):
        mode = os.lstat(file).st_mode
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "no file").partition(",")[0]
            raise FileError(str(file), f"it is {kind}, which is not written to or over")
    # In the same folder, since only there a replacement is atomic.
    half = file.with_name(f".{file.name[:200]}.{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(half, flags, 0o666), "wb") as stream:
            stream.write(content)
        os.replace(half, file)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the entries of a folder and of those below, by relative path; no link is followed.

    Raises OSError where the folder itself cannot be read; for a folder below it yields the name
    alone.
    """
    inside = [""]
    while inside:
        prefix = inside.pop()
        try:
            with os.scandir(folder / prefix) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            if not prefix:
                raise
            continue
        for entry in entries:
            facts = entry.stat(follow_symlinks=False)
            yield prefix + entry.name, facts
            if stat.S_ISDIR(facts.st_mode):
                inside.append(f"{prefix}{entry.name}/")


def kind_of(facts: os.stat_result) -> str | None:
    """Returns the kind of an entry that is neither a regular file nor a folder; None for these."""
    kind = stat.S_IFMT(facts.st_mode)
    return None if kind in (stat.S_IFREG, stat.S_IFDIR) else _KINDS.get(kind, "no file")


def _place(folder: Path, name: str) -> Path:
    """Returns the path of a regular file in a folder, without links below it; raises as
    `read_bytes` does."""
    if not is_plain(name):
        raise FileError(name, "the name leads out of the dump")
    *folders, last = name.split("/")
    path = folder
    for part in folders:
        path /= part
        _check(name, path.lstat(), stat.S_IFDIR, part)
    # Checked before opening: opening a device can have effects.
    _check(name, (path / last).lstat(), stat.S_IFREG)
    return path / last


def _opened(folder: Path, name: str) -> BinaryIO:
    """Opens a regular file; raises as `read_bytes` does."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(_place(folder, name), flags), "rb")


def _check(name: str, facts: os.stat_result, wanted: int, part: str = "it") -> None:
    kind = stat.S_IFMT(facts.st_mode)
    if kind != wanted:
        raise FileError(name, f"{part} is {_KINDS.get(kind, 'no file')}")


def _content(stream: BinaryIO, name: str, most_bytes: int) -> bytes:
    is_small = os.fstat(stream.fileno()).st_size <= most_bytes
    # Files of the kernel report size 0 and hold more.
    content = stream.read(most_bytes + 1) if is_small else b""
    if not is_small or len(content) > most_bytes:
        raise FileError(name, f"it has more than {most_bytes >> 20} MiB, which is not read")
    return content


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _is_too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_NESTED + 1):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [child for each in inner for child in each if isinstance(child, dict | list)]
        if not level:
            return False
    return True
