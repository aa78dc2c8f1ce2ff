"""Prints lines: through `logging` where the program uses it, else on stderr or in the notebook."""

from __future__ import annotations

import enum
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from hloom.log import notebook, terminal
from hloom.log.settings import LogLevel, log_level
from hloom.show.visible import visible

LOGGER = "hloom"


class Outlet(enum.Enum):
    """The place that lines are printed to."""

    NOWHERE = enum.auto()
    LOGGING = enum.auto()
    """Lines go to the handlers of the root logger or of "hloom"."""
    NOTEBOOK = enum.auto()
    STDERR = enum.auto()


def outlet() -> Outlet:
    """Returns the place that lines are printed to now.

    Where the program has handlers, these and their levels decide, and hloom adds none of its own:
    no line is printed twice. `HLOOM_LOG=on` shows lines that the levels would drop.
    """
    level, logger = log_level(), logging.getLogger(LOGGER)
    if level is LogLevel.OFF:
        return Outlet.NOWHERE
    if level is not LogLevel.ON or logger.isEnabledFor(logging.INFO):
        if logger.hasHandlers():
            return Outlet.LOGGING
        # Without handlers the root's level has no meaning: WARNING is its default.
        wanted = max(logger.level, logger.manager.disable + 1)
        if logger.disabled or wanted > logging.INFO:
            return Outlet.NOWHERE
    return Outlet.NOTEBOOK if notebook.is_here() else Outlet.STDERR


def prefixed(line: str) -> str:
    """Returns the line as it is printed: after hloom's name, to be found in a long log, and as
    plain text.

    In a process of `multiprocessing` the line has the process's name: workers share a terminal.
    """
    from multiprocessing import current_process, parent_process

    worker = "" if parent_process() is None else f"[{visible(current_process().name)}]"
    line = line.replace("\n", r"\n").replace("\t", r"\t")
    return f"hloom{worker}: {visible(line)}"


def emit(line: str) -> None:
    """Prints a line, from any thread."""
    text, where = prefixed(line), outlet()
    if where is Outlet.LOGGING:
        logging.getLogger(LOGGER).info("%s", text)
    elif where is Outlet.NOTEBOOK:
        notebook.CellOutput().show(text)
    elif where is Outlet.STDERR:
        # A closed stream has no reader to miss the line.
        with suppress(OSError, ValueError):
            if not terminal.board.print(text):
                _print(text)


def emit_written(folder: Path, name: str = "") -> None:
    """Prints that a dump was written, with its folder relative to the working directory.

    Args:
      folder: the dump's folder.
      name: the dumped program's name; empty for a step's dump.
    """
    with suppress(OSError, ValueError):
        folder = folder.relative_to(Path.cwd())
    emit(f"{name}: wrote {folder}" if name else f"wrote {folder}")


def _print(text: str) -> None:
    stream: Any = sys.stderr
    if stream is None:
        return
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeError:
        text = text.replace("→", "->")
    bars = terminal.progress_bars()
    if bars is not None:
        bars.write(text, file=stream)
    else:
        print(text, file=stream, flush=True)
