"""Tells, at the end of a program, that chosen steps never came, since it names no step."""

from __future__ import annotations

import atexit
import functools
import sys

from hloom.dumps import step


@functools.cache
def remind_at_exit() -> None:
    """Has the end of the program say so, where `hloom.step` was never used; once."""
    atexit.register(remind)


def remind() -> None:
    """Says it on stderr where there is reason to."""
    if not step.is_used():
        print(
            "hloom: steps were to be dumped, but the program named none: put "
            "`with hloom.step(n):` around each training step.",
            file=sys.stderr,
        )
