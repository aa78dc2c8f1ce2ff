"""Runs items in child processes, within the time of a part."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu.items import CRASHED, OK, STOPPED, TIMED_OUT, Entry, Item, Part, Settings
from benchmarks.gpu.results import Store

_TAIL_CHARACTERS = 2000
_MOST_DYING_S = 20
_LOOK_EVERY_S = 0.1

_PLACE = re.compile(r'(?<![\w.])/[^\s"\\]*/((?:site-packages|benchmarks|tests)/)')
"""In JSON, the folders around those of packages, of the benchmarks and of the tests."""


class Children:
    """Processes that run an item each."""

    def __init__(self, python: Path, work: Path, environment: Mapping[str, str]) -> None:
        """Runs them with this Python, in the folder `work`, with these variables and no others."""
        self._python = python
        self._work = work
        self._environment = dict(environment)
        # A signal's handler may come while this thread has it.
        self._lock = threading.RLock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._count = 0
        self._ended = False

    def run(self, item: Item, limit_s: float) -> Entry:
        """Runs an item to its end, or to its limit; says how it ended. Thread-safe."""
        with self._lock:
            if self._ended:
                return _stopped()
            self._count += 1
            stem = self._work / "items" / f"{os.getpid()}-{self._count}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        job, result, log = (stem.with_suffix(each) for each in (".job", ".json", ".log"))
        description = {
            "function": item.function,
            "arguments": dict(item.arguments),
            "limit_s": limit_s,
            "result": str(result),
        }
        job.write_text(json.dumps(description), encoding="utf-8")
        started = datetime.now(UTC)
        start_s = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [str(self._python), "-m", "benchmarks.gpu.child", str(job)],
                cwd=self._work,
                env={**self._environment, **item.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            with self._lock:
                self._running.add(process)
                ended = self._ended
            try:
                out_of_time = not _ends(process, 0 if ended else limit_s)
            finally:
                with self._lock:
                    self._running.discard(process)
                # Also what it started: a kernel that spins would be in the way of all that follows.
                _kill(process)
                # One that hangs in the driver outlives even that; it must not keep all others.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_MOST_DYING_S)
        entry = _ending(result, process.returncode, out_of_time, self._ended, limit_s)
        if entry["status"] != OK:
            entry["tail"] = log.read_bytes()[-_TAIL_CHARACTERS:].decode(errors="replace")
        for file in (job, result, log):
            file.unlink(missing_ok=True)
        return without_places(entry) | {
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - start_s, 1),
        }

    def end(self) -> None:
        """Ends every process that runs, and every one that is started from now on."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)


def without_places(entry: Entry) -> Entry:
    """What an item gave, with files of the repository and of packages wherever those lie."""
    told: Entry = json.loads(_PLACE.sub(r"\1", json.dumps(entry)))
    return told


def _ends(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether a process ends in that time. It is not waited for: its number stays its own."""
    end_s = time.monotonic() + limit_s
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, process.pid, how) is None:
        if time.monotonic() >= end_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that was not waited for, and its group, which is all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _stopped() -> Entry:
    return {"status": STOPPED, "why": "it was ended from outside", "seconds": 0.0}


def _ending(
    result: Path, code: int | None, out_of_time: bool, ended: bool, limit_s: float
) -> Entry:
    written: Entry = {}
    with contextlib.suppress(OSError, ValueError):
        written = json.loads(result.read_text(encoding="utf-8"))
    if "status" in written:
        return written
    if ended:
        entry = _stopped()
    elif out_of_time or code == -signal.SIGALRM:
        entry = {"status": TIMED_OUT, "why": f"it took longer than {limit_s:.0f} s"}
    else:
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
        entry = {"status": CRASHED, "why": f"its process ended with {how} and no result"}
    return entry | written


class Runner:
    """Runs parts, and keeps every item's end in the store."""

    def __init__(
        self, children: Children, store: Store, *, minutes: float, jobs: int, crowd: bool = False
    ) -> None:
        """Runs parts of at most so many minutes.

        Of the items that need not be alone `jobs` run at once, and of all items in a crowd.
        """
        self._children = children
        self._store = store
        self._limit_s = minutes * 60
        self._jobs = jobs
        self._crowd = crowd

    def run_part(self, number: int, part: Part, settings: Settings, commit: str | None) -> bool:
        """Runs what is left of a part; says whether nothing is left of it then."""
        deadline_s = time.monotonic() + self._limit_s
        self._store.note_part(number, started=_now(), complete=False, commit=commit)
        left: list[str] = []
        for batch in part.batches(self._store.known, settings):
            to_do = [item for item in batch if not self._store.is_done(item.name)]
            together = [item for item in to_do if self._crowd or not item.alone]
            with ThreadPoolExecutor(self._jobs) as pool:
                done = list(pool.map(lambda item: self._run(item, deadline_s, commit), together))
            done += [self._run(item, deadline_s, commit) for item in to_do if item not in together]
            left += [name for name in done if name is not None]
            if left:
                break
        self._store.note_part(number, finished=_now(), complete=not left, left=left)
        return not left

    def _run(self, item: Item, deadline_s: float, commit: str | None) -> str | None:
        """Runs an item; gives its name where it is still to be done."""
        left_s = deadline_s - time.monotonic()
        if left_s < item.needs_s:
            return item.name
        limit_s = min(item.limit_s, left_s)
        entry = self._children.run(item, limit_s)
        if entry["status"] == TIMED_OUT and limit_s < item.limit_s:
            # It was the part's time that was over, not its own.
            entry["status"] = STOPPED
        self._store.add(item.name, entry | {"commit": commit})
        said = f"{entry['status']:13} {item.name} ({entry['seconds']:.0f} s){_short(entry)}"
        print(said, flush=True)
        return None if self._store.is_done(item.name) else item.name


def _short(entry: Entry) -> str:
    why = str(entry.get("why", "")).splitlines()
    return f": {why[0][:200]}" if why else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
