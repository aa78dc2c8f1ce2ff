"""Writes a share of arrays in a process of its own, where this one is at its end.

Orbax works in threads, and Python starts none any more once a program has come to its end; from
3.12 on not even for what runs at exit. Another process it does start.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hloom.dumps.array_files import ArrayEntry

TIMEOUT_S = 60.0
"""How long to wait for it. It imports JAX and Orbax first, which takes 5 s on a slow machine."""

_SCRIPT = (
    "import pickle, sys; from hloom.dumps.array_files import write_share; "
    "write_share(*pickle.load(sys.stdin.buffer))"
)
_ENDING = "interpreter shutdown"
"""What Python says where a thread is not started: of `threading` and of `concurrent.futures`."""


def is_ending(error: BaseException) -> bool:
    """Whether something failed only because the program is at its end."""
    return _ENDING in str(error)


def write_share_elsewhere(
    folder: Path, entries: Sequence[ArrayEntry], shards: Mapping[str, np.ndarray]
) -> None:
    """As `write_share`, in a process of its own. Raises OSError where that fails or is not in time.

    Args:
      folder: not there yet.
      entries, shards: the share.
    """
    # Neither the program's devices nor its passes and dumps are for that process.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HLOOM_")}
    environment = kept | {"JAX_PLATFORMS": "cpu", "JAX_HLOOM": "off"}
    try:
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _SCRIPT],
            input=pickle.dumps((folder.absolute(), tuple(entries), dict(shards))),
            capture_output=True,
            env=environment,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"the arrays were not written {TIMEOUT_S:.0f} s after the end") from error
    if result.returncode != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(lines[-1] if lines else f"the process ended with {result.returncode}")
