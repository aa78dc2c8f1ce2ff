"""Shows the progress of attempts on a terminal, as live lines."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


def is_interactive() -> bool:
    """Whether stderr is an interactive terminal that nothing else draws on.

    A replaced `sys.stderr` belongs to other code: a bar of rich, a capture, a log. A child process
    and one in the background do not draw on the terminal.
    """
    stream: Any = sys.stderr
    own: Any = sys.__stderr__
    if stream is None or stream is not own or os.environ.get("TERM", "dumb") == "dumb":
        return False
    from multiprocessing import parent_process

    try:
        is_in_front = stream.isatty() and os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
    bars = progress_bars()
    return is_in_front and parent_process() is None and not getattr(bars, "_instances", None)


def progress_bars() -> Any:
    """Returns the class of tqdm's bars where the program has loaded it; None elsewhere."""
    return getattr(sys.modules.get("tqdm"), "tqdm", None)


@dataclass(frozen=True)
class _Row:
    """A line, and the start time of the work that it shows."""

    text: str
    start_s: float


class Board:
    """Shows the running compiles, a line each, at the bottom of the terminal, and removes them at
    the end.

    All threads share one board: a terminal has one bottom.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[object, _Row] = {}
        self._live: Live | None = None
        self._console: Console | None = None

    def show(self, owner: object, text: str) -> None:
        """Shows a line of an owner in place of its last one, with the seconds since then."""
        with self._lock, suppress(OSError, ValueError):
            self._rows[owner] = _Row(text, time.monotonic())
            if self._live is None:
                self._live = self._start()
            else:
                self._live.refresh()

    def drop(self, owner: object) -> None:
        """Removes an owner's line; removing the last one restores the terminal."""
        with self._lock:
            if self._rows.pop(owner, None) is None or self._live is None:
                return
            with suppress(OSError, ValueError):
                if self._rows:
                    self._live.refresh()
                    return
                self._live.stop()
            self._live = None

    def print(self, text: str) -> bool:
        """Prints a line above the live lines; False where none is live."""
        with self._lock:
            if self._live is None:
                return False
            self._live.console.print(text, soft_wrap=True)
            return True

    def _start(self) -> Live:
        from rich.live import Live

        self._console = _console()
        live = Live(
            console=self._console,
            get_renderable=self._render,
            transient=True,
            # The program's own output is not redirected.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start(refresh=True)
        return live

    def _render(self) -> RenderableType:
        """Called by the thread that redraws: without the lock, which `stop` is called under."""
        from rich.text import Text

        assert self._console is not None
        lines = []
        for row in list(self._rows.values()):
            since = f"  {time.monotonic() - row.start_s:.0f} s"
            line = Text(row.text, style="dim")
            line.truncate(max(1, self._console.width - len(since)), overflow="ellipsis")
            lines.append(line.append(since))
        return Text("\n").join(lines)


def _console() -> Console:
    from hloom.show.terminal import PlainConsole

    class _SteadyConsole(PlainConsole):
        """A console that never hides the cursor, so that a killed process leaves it visible."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    return _SteadyConsole(file=sys.stderr)


board = Board()
