"""For dry runs: the tests' libcuda.so.1, whose devices run hloom's kernels on the CPU."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.gpu.child import Note
from benchmarks.gpu.harness import of_tests
from benchmarks.gpu.items import ROOT, Skip

_SOURCES = (
    "tests/native/cuda",
    "tests/support/devices/cuda_on_cpu.py",
    "runtime/cuda_kernels",
    "runtime/csrc",
)


def make(note: Note, folder: str) -> str:
    """Where it is, in a folder of that folder's; compiled where these sources have not been yet.

    Skips where a compiler for it, or NVRTC, is missing.
    """
    from hloom.runtime import nvrtc

    try:
        nvrtc.load()
    except nvrtc.CompilerMissingError as error:
        raise Skip(str(error).partition("\n")[0]) from None
    made = Path(folder) / _digest()
    if made.exists():
        return str(made)
    if of_tests("support.devices.native_code").compiler() is None:
        raise Skip("there is no C++ compiler")
    made.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=made.parent))
    of_tests("support.devices.cuda_on_cpu").compile_driver(new)
    try:
        os.rename(new, made)
    except OSError:  # another process was faster
        shutil.rmtree(new)
    return str(made)


def _digest() -> str:
    digest = hashlib.sha256()
    for name in _SOURCES:
        source = ROOT / name
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if file.is_file():
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
