"""Compiles the C++ of runtime/csrc/tests, against the headers of the installed jaxlib."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax.ffi
import pytest

from support import ROOT

CSRC = ROOT / "runtime" / "csrc"
NATIVE = CSRC / "tests"
GROUP_CALL = tuple(
    CSRC / f"{name}.cc" for name in ("call_attributes", "cpu/group_call", "rendezvous", "trace")
)
"""What handlers need whose ranks meet on the CPU."""


def names_of_tests(*sources: Path) -> list[str]:
    """The names of the tests in a program of these sources (tests/check.h)."""
    texts = (source.read_text(encoding="utf-8") for source in sources)
    return [name for text in texts for name in re.findall(r"^TEST\((\w+)\)", text, re.MULTILINE)]


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
