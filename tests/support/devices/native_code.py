"""Compiles the C++ of runtime/csrc/tests, against the headers of the installed jaxlib.

Each program is compiled once, for all tests and workers, until some C++ in `runtime/` changes.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import jax.ffi
import pytest

from support import ROOT

CSRC = ROOT / "runtime" / "csrc"
NATIVE = CSRC / "tests"
BUILT = ROOT / "build" / "native"
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
    """Puts what is compiled from the sources at `output`, or skips the test without a compiler."""
    command = compiler()
    if command is None:
        pytest.skip("no C++ compiler on this machine")
    flags = ("-std=c++17", "-pthread", "-Wall", "-Wextra", "-Werror", *flags)
    include = ("-I", str(CSRC), "-isystem", jax.ffi.include_dir())
    # As one, for most of the time goes into the headers of XLA.
    code = "".join(f'#include "{source}"\n' for source in sources)
    arguments = [command, *flags, *include, "-x", "c++", "-"]

    def compile_(folder: Path) -> None:
        output = ("-o", str(folder / "compiled"))
        subprocess.run([*arguments, *output], input=code, text=True, check=True, timeout=240)

    # A copy, for libraries have variables, and two that are one file would share them.
    shutil.copy(made_once(compile_, *arguments, code) / "compiled", output)
    return output


def made_once(make: Callable[[Path], object], *names: str) -> Path:
    """The folder of these names that `make` has filled: again only where the C++ of `runtime/`, the
    compiler or the headers are others. Others who ask for it wait."""
    BUILT.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\0".join((_inputs(), *names)).encode()).hexdigest()[:24]
    folder = BUILT / digest
    with (BUILT / f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # One that was not finished is not taken for it.
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            make(new)
            new.rename(folder)
    return folder


@functools.cache
def _inputs() -> str:
    """A digest of all that a program may be compiled from, but for the names of its sources."""
    version = [compiler() or "", "--version"]
    digest = hashlib.sha256(subprocess.run(version, capture_output=True, check=True).stdout)
    headers = Path(jax.ffi.include_dir()) / "xla" / "ffi"
    for folder in (CSRC, CSRC.parent / "cuda_kernels", headers):
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            digest.update(f"{file}\0".encode() + file.read_bytes())
    return digest.hexdigest()
