"""Compiles the test-only C++ of tests/native, against the headers of the installed jaxlib."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax.ffi
import pytest

from support import ROOT

NATIVE = ROOT / "tests" / "native"
CSRC = ROOT / "runtime" / "csrc"


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
