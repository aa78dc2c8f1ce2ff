"""Scripts that run in several processes at once, one `jax.distributed` job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from support import xla_flags


def run_members(
    script: str,
    *arguments: str,
    processes: int = 2,
    devices: int = 1,
    timeout_s: float = 120,
    **variables: str,
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a script in processes of so many virtual CPU devices each, and gives what each did.

    Its arguments are these, the number of its process, and a free port. Each process has a hash
    seed of its own: what depends on the order of a set differs between them.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    flags = {"XLA_FLAGS": xla_flags(devices)}
    members = [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments, str(process), port],
            env=os.environ | flags | {"PYTHONHASHSEED": str(process + 1)} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]
    try:
        outputs = [member.communicate(timeout=timeout_s) for member in members]
    finally:
        for member in members:
            member.kill()
    return [
        subprocess.CompletedProcess(member.args, member.returncode, *output)
        for member, output in zip(members, outputs, strict=True)
    ]
