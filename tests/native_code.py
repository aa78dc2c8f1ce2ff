"""Compiles the C++ of runtime/csrc/tests, against the headers of the installed jaxlib."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax.ffi
import pytest

ROOT = next(each for each in Path(__file__).parents if (each / "pyproject.toml").exists())
CSRC = ROOT / "runtime" / "csrc"
NATIVE = CSRC / "tests"
GROUP_CALL = tuple(CSRC / name for name in ("group_call.cc", "rendezvous.cc", "trace.cc"))
"""What handlers need whose ranks meet on the CPU."""


def compiler() -> str | None:
    """The C++ compiler of this machine; None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")


def compile_native(output: Path, sources: Sequence[Path], *flags: str) -> Path:
    """Compiles the sources into `output`, or skips the test where there is no compiler."""
    command = compiler()
    if command is None:
        pytest.skip("no C++ compiler on this machine")
    flags = ("-std=c++17", "-pthread", "-Wall", "-Wextra", "-Werror", *flags)
    include = ("-I", str(CSRC), "-isystem", jax.ffi.include_dir())
    subprocess.run(
        [command, *flags, *include, *map(str, sources), "-o", str(output)],
        check=True,
        timeout=240,
    )
    return output
