"""Errors of a command."""

from __future__ import annotations

import shutil
import sys

from hloom.show.terminal import folded
from hloom.show.visible import visible


def complain(program: str, error: object) -> int:
    """Prints an error on stderr, as "PROGRAM: error: …"; returns the exit status, 1.

    On a terminal the text wraps between words; elsewhere it is one line, which can be searched.
    """
    text = f"{program}: error: {visible(str(error))}"
    stream = sys.stderr
    if stream is not None and stream.isatty():
        text = folded(text, shutil.get_terminal_size().columns, "  ")
    print(text, file=stream)
    return 1
