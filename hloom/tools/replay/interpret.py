"""Runs a program in StableHLO's reference interpreter, in a process of its own.

The interpreter ends its process at an operation that it does not know, and takes minutes for what
a device does at once.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hloom.tools.replay.errors import ReplayError
from hloom.tools.replay.program import ReplayProgram

Array = NDArray[Any]

LIMIT_S = 600.0
"""How long the interpreter may take."""

_REASON_CHARACTERS = 300
"""An error quotes an operation as text, and some have large attributes."""

_COMPLAINT = re.compile(r"(?:LLVM ERROR: |error: )(.*)")


def interpret(
    program: ReplayProgram, arguments: Sequence[Array], *, limit_s: float = LIMIT_S
) -> list[Array]:
    """The results of the program as it came, without passes and without XLA.

    Raises ReplayError where the interpreter does not know an operation of the program, a collective
    among many devices for example, or takes longer than `limit_s` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="hloom-interpret-") as folder:
        module, given, found = (
            Path(folder) / name for name in ("module.mlir", "given.npz", "found.npz")
        )
        text = program.module.operation.get_asm(enable_debug_info=False)
        module.write_text(str(text), encoding="utf-8")
        save_arrays(given, arguments)
        command = [
            sys.executable,
            "-m",
            "hloom.tools.replay.interpreter",
            *map(str, (module, given, found)),
        ]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise ReplayError(
                f"the interpreter was not done with {program.name} after {limit_s:g} s. It is for "
                "small programs: leave out --interpret."
            ) from error
        if result.returncode != 0:
            raise ReplayError(f"{program.name} cannot be interpreted: {_reason(result.stderr)}")
        return load_arrays(found, [(value.dtype, value.shape) for value in program.results])


def save_arrays(file: Path, arrays: Sequence[Array]) -> None:
    """Writes the bytes of arrays: NumPy's format does not know bfloat16 and its like."""
    data: Mapping[str, Any] = {
        str(number): np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for number, array in enumerate(arrays)
    }
    np.savez(file, **data)


def load_arrays(file: Path, kinds: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> list[Array]:
    """Reads what `save_arrays` wrote, of these dtypes and shapes."""
    with np.load(file) as data:
        return [
            data[str(number)].view(dtype).reshape(shape)
            for number, (dtype, shape) in enumerate(kinds)
        ]


def _reason(stderr: str) -> str:
    said = _COMPLAINT.search(stderr)
    lines = [line for line in stderr.splitlines() if line.strip()]
    reason = said[1] if said else (lines[-1] if lines else "the interpreter said nothing")
    return reason if len(reason) <= _REASON_CHARACTERS else reason[:_REASON_CHARACTERS] + "…"
