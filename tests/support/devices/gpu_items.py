"""Items of every kind of ending, as children of `benchmarks.gpu` run them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.items import Skip

Note = Callable[[Any], None]


def fine(note: Note, value: int) -> int:
    return value + 1


def refuses(note: Note) -> None:
    raise Skip("no such thing here")


def lacks_a_package(note: Note) -> None:
    import no_such_package_anywhere  # noqa: F401


def fails(note: Note) -> None:
    note({"so far": 1})
    raise ValueError("wrong rows")


def fills_the_device(note: Note) -> None:
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes")


def crashes(note: Note) -> None:
    note({"so far": 2})
    print("the last words", flush=True)
    os.abort()


def leaves_a_process(note: Note) -> int:
    return subprocess.Popen(["sleep", "100"]).pid


def hangs(note: Note) -> None:
    note({"so far": 3})
    time.sleep(100)
