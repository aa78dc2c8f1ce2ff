"""Scripts that run in several processes at once, one `jax.distributed` job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from support import xla_flags

Member = subprocess.Popen[str]


class Board:
    """What processes tell each other, in one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: str) -> None:
        with self._changed:
            assert key not in self._values
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, timeout_s)
            return self._values.get(key)

    def delete(self, key: str) -> None:
        with self._changed:
            del self._values[key]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_members(
    script: str, *arguments: str, processes: int = 2, devices: int = 1, **variables: str
) -> list[Member]:
    """Starts a script in processes of so many virtual CPU devices each.

    Its arguments are these, the number of its process, and a free port. Each process has a hash
    seed of its own: what depends on the order of a set differs between them.
    """
    port = str(free_port())
    flags = {"XLA_FLAGS": xla_flags(devices)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments, str(process), port],
            env=os.environ | flags | {"PYTHONHASHSEED": str(process + 1)} | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]


def ended(
    members: Sequence[Member], *, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
) -> list[subprocess.CompletedProcess[str]]:
    """What each process did, when all have ended; none is left."""
    try:
        meanwhile()
        outputs = [member.communicate(timeout=timeout_s) for member in members]
    finally:
        for member in members:
            member.kill()
    return [
        subprocess.CompletedProcess(member.args, member.returncode, *output)
        for member, output in zip(members, outputs, strict=True)
    ]


def run_members(
    script: str,
    *arguments: str,
    processes: int = 2,
    devices: int = 1,
    timeout_s: float = 120,
    **variables: str,
) -> list[subprocess.CompletedProcess[str]]:
    """Starts a script as `start_members` does, and gives what each process did."""
    members = start_members(script, *arguments, processes=processes, devices=devices, **variables)
    return ended(members, timeout_s=timeout_s)


def assert_all_equal(members: Sequence[subprocess.CompletedProcess[str]]) -> None:
    """All have ended well, with "equal" as their last word."""
    for member in members:
        assert member.returncode == 0, member.stderr
        assert member.stdout.endswith("equal\n")
