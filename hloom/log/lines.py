"""Says lines: through `logging` where the program uses it, else on stderr or in the notebook."""

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
    """The place that lines go to."""

    NOWHERE = enum.auto()
    LOGGING = enum.auto()
    """To the handlers that the program has given to the root logger or to "hloom"."""
    NOTEBOOK = enum.auto()
    STDERR = enum.auto()


def outlet() -> Outlet:
    """The place that lines go to, here and now.

    A program that has handlers decides by them and by their levels, and hloom adds none of its own:
    no line is there twice. `HLOOM_LOG=on` shows what the levels would drop.
    """
    level, logger = log_level(), logging.getLogger(LOGGER)
    if level is LogLevel.OFF:
        return Outlet.NOWHERE
    if level is not LogLevel.ON or logger.isEnabledFor(logging.INFO):
        if logger.hasHandlers():
            return Outlet.LOGGING
        # Without handlers the root's level says nothing: it is WARNING where nobody has set it.
        wanted = max(logger.level, logger.manager.disable + 1)
        if logger.disabled or wanted > logging.INFO:
            return Outlet.NOWHERE
    return Outlet.NOTEBOOK if notebook.is_here() else Outlet.STDERR


def prefixed(line: str) -> str:
    """The line as it is shown: with hloom's name, to be found in a long log, and as text alone.

    Of a process that `multiprocessing` has started it has the name: workers share a terminal.
    """
    from multiprocessing import current_process, parent_process

    worker = "" if parent_process() is None else f"[{visible(current_process().name)}]"
    line = line.replace("\n", r"\n").replace("\t", r"\t")
    return f"hloom{worker}: {visible(line)}"


def emit(line: str) -> None:
    """Says a line, from any thread."""
    text, where = prefixed(line), outlet()
    if where is Outlet.LOGGING:
        logging.getLogger(LOGGER).info("%s", text)
    elif where is Outlet.NOTEBOOK:
        notebook.Output().show(text)
    elif where is Outlet.STDERR:
        # Where nobody reads any more, nobody misses it.
        with suppress(OSError, ValueError):
            if not terminal.board.print(text):
                _print(text)


def emit_written(folder: Path, name: str = "") -> None:
    """Says that a dump was written, with its folder as one types it where the program runs.

    Args:
      folder: of the dump.
      name: of the program that it has; empty for a step's.
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
