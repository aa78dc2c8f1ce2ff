"""For dry runs: the tests' libcuda.so.1, whose devices run hloom's kernels on the CPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.gpu.child import Note
from benchmarks.gpu.harness import of_tests
from benchmarks.gpu.items import Skip


def make(note: Note, folder: str) -> str:
    """Where it is, in a new folder of that folder's; compiled where its sources are others.

    Skips where a compiler for it, or NVRTC, is missing.
    """
    from hloom.runtime import nvrtc

    try:
        nvrtc.load()
    except nvrtc.CompilerMissingError as error:
        raise Skip(str(error).partition("\n")[0]) from None
    if of_tests("support.devices.native_code").compiler() is None:
        raise Skip("there is no C++ compiler")
    Path(folder).mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder))
    return str(of_tests("support.devices.cuda_on_cpu").compile_driver(made))
