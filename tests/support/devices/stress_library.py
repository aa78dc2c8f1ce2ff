"""Builds what the stress tests run, and starts the worker that runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support import xla_flags
from support.devices.native_code import GROUP_CALL, NATIVE, compile_native

WORKER = Path(__file__).with_name("stress_worker.py")

STEPS_OF_A_SITE = 3


BLOCKING_BARRIER = (NATIVE / "blocking_barrier.cc", *GROUP_CALL)


def compile_stress(folder: Path, *others: Path) -> Path:
    """The library with the kernels of a site, or skips the test where there is no compiler."""
    sources = [NATIVE / "stress.cc", *others]
    return compile_native(folder / "libstress.so", sources, "-O1", "-fPIC", "-shared")


def new_counters(library: Path) -> Path:
    """A file for the library to count in."""
    with tempfile.NamedTemporaryFile(delete=False, dir=library.parent) as file:
        return Path(file.name)


def start_worker(
    library: Path, counters: Path, devices: int, *options: str, more_flags: str = ""
) -> subprocess.Popen[str]:
    """Starts stress_worker.py with that many virtual devices."""
    flags = f"{xla_flags(devices)} {more_flags}"
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(library), str(counters), *options],
        env=os.environ | {"XLA_FLAGS": flags},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
