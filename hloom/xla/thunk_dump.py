"""Has XLA write the thunk sequence of one compile, and reads it.

No other way exists: an executable does not expose its thunks. XLA writes a few MiB (295 files and 3
MiB for a GPT of 4 layers), for 5 % of the time of the compile, on one core of the machine these
were measured on (2026-11-21). The options for it are not part of JAX's cache key.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hloom import files
from hloom.xla.coverage import Coverage
from hloom.xla.hlo import DUMP_TO, HloModule
from hloom.xla.left_out import coverage
from hloom.xla.thunks import parse_names, parse_sequence

_SEQUENCE = "thunk_sequence.txt"
_SEQUENCE_WITH_GRAPHS = "thunk_sequence_after_thunk_passes.txt"
_NAMES = "thunk_metadata.txt"
_HLO = "*gpu_after_optimizations.txt"


class ThunkDump:
    """The files that XLA writes about one compile.

    Attributes:
      options: compile options that make XLA write them.
    """

    def __init__(self, folder: Path, options: Mapping[str, str | int | bool]) -> None:
        self.options = options
        self._folder = folder
        self._before = set(_sequences(folder))

    def read(self) -> Coverage | None:
        """Returns the coverage; None where XLA wrote nothing because a cache served the compile.

        Raises ValueError where XLA's text cannot be parsed.
        """
        new = [file for file in _sequences(self._folder) if file not in self._before]
        # The largest file is the step; others are programs that autotuning tried.
        return read_sequence(max(new, key=_size)) if new else None


@contextmanager
def thunk_dump(given: Mapping[str, str]) -> Iterator[ThunkDump]:
    """Opens a folder for XLA to write to, deleted at the end of the block.

    Args:
      given: the options of XLA that the user has set; where they make XLA write already, it goes on
        writing there, and the new files are read.
    """
    if given.get(DUMP_TO, "") not in ("", "-"):
        yield ThunkDump(Path(given[DUMP_TO]), {})
        return
    with tempfile.TemporaryDirectory(prefix="hloom-thunks-") as folder:
        yield ThunkDump(Path(folder), {DUMP_TO: folder, "xla_dump_hlo_as_text": True})


def read_sequence(file: Path) -> Coverage:
    """Returns the coverage of a `*.thunk_sequence.txt`, with the files beside it.

    Raises ValueError where it cannot be parsed.
    """
    stem = file.name.removesuffix(_SEQUENCE)
    with_graphs = file.with_name(stem + _SEQUENCE_WITH_GRAPHS)
    names = file.with_name(stem + _NAMES)
    modules = sorted(file.parent.glob(stem + _HLO))
    return coverage(
        # XLA does not write the second file where it formed no graph.
        parse_sequence(_text(with_graphs if with_graphs.exists() else file)),
        parse_names(_text(names)) if names.exists() else {},
        HloModule(_text(modules[0]) if modules else ""),
    )


def find_sequences(folder: Path) -> list[Path]:
    """Returns the thunk sequences that XLA wrote into a folder, ordered by module number."""
    return sorted(_sequences(folder))


def _sequences(folder: Path) -> list[Path]:
    return list(folder.glob("*." + _SEQUENCE))


def _size(file: Path) -> int:
    return file.stat().st_size


def _text(file: Path) -> str:
    # The folder's content is not trusted.
    return files.read_bytes(file.parent, file.name).decode(errors="replace")
