"""Runs `hloom report`, `replay` and `bisect` in a process that notes what they open and start.

    python hostile_dumps.py JOBS OUTCOMES

JOBS is a JSON list of {"words": [...], "outside": [paths]}: command lines, and what lies outside
of the dump and must be neither opened nor written. OUTCOMES gets for each its exit status, what it
printed, how long it took, what of "outside" it touched and what programs it started.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401 - on its first import on a machine it runs fc-list

import hloom_tools.cli

_touched: list[str] = []
_watched: list[str] = []

_PATH_EVENTS = frozenset(
    "open os.listdir os.scandir os.mkdir os.remove os.rename os.link os.symlink os.truncate".split()
)
_STARTS = frozenset(["subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"])


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes what is opened of what is watched, and every program that Python starts."""
    if event in _STARTS:
        _touched.append(f"{event} {arguments[0]}")
    if event not in _PATH_EVENTS or not _watched:
        return
    follows = event != "open" or not int(arguments[2] or 0) & os.O_NOFOLLOW
    for path in arguments[:2]:
        if isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)
            found = os.path.realpath(name) if follows else os.path.abspath(name)
            _touched.extend(f"{event} {each}" for each in _watched if found == each)


def run(words: list[str], outside: list[str]) -> dict[str, object]:
    """Runs one command line in this process."""
    _touched.clear()
    _watched[:] = outside
    out, err = io.StringIO(), io.StringIO()
    start_s = time.perf_counter()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status: object = hloom_tools.cli.main(words)
    except SystemExit as end:
        status = end.code
    except BaseException:
        status = traceback.format_exc()
    return {
        "status": status,
        "out": out.getvalue(),
        "err": err.getvalue(),
        "seconds": time.perf_counter() - start_s,
        "touched": list(_touched),
    }


def main(jobs: Path, outcomes: Path) -> None:
    """Runs all jobs; each outcome is written at once, so that what hangs can be told."""
    sys.addaudithook(watch)
    with outcomes.open("w", encoding="utf-8") as file:
        for job in json.loads(jobs.read_text(encoding="utf-8")):
            file.write(json.dumps(run(job["words"], job["outside"])) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
