"""The progress of a command: one line at the bottom of the terminal, with its seconds.

It is on stderr, and only where a person looks at it: a pipe and a file get none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from hloom.log import terminal


@contextlib.contextmanager
def progress_line(what: str = "") -> Iterator[Callable[[str], None]]:
    """Shows what a command is doing, as long as the block is open; gives the function that replaces
    the line.

    Print nothing inside of the block: the line is where the cursor is.
    """
    owner = object()

    def report(what: str) -> None:
        if terminal.is_interactive():
            terminal.board.show(owner, f"hloom: {what}")

    if what:
        report(what)
    try:
        yield report
    finally:
        terminal.board.drop(owner)
