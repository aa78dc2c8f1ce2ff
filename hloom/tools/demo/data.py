"""Real text for the demo: the source files of the installed Python standard library, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hloom.passes.framework.text import pluralize

Tokens = npt.NDArray[np.uint8]

MAX_CORPUS_BYTES = 16 * 2**20
_NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__"})


def standard_library(max_bytes: int = MAX_CORPUS_BYTES) -> Tokens:
    """The first `max_bytes` of the library's `.py` files, in the order of their paths.

    The same on every run with the same Python. Raises FileNotFoundError where this Python was
    installed without its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = (path.relative_to(root) for path in root.rglob("*.py"))
    parts: list[bytes] = []
    size_bytes = 0
    for name in sorted(name for name in names if not _NOT_THE_LIBRARY.intersection(name.parts)):
        parts.append((root / name).read_bytes())
        size_bytes += len(parts[-1])
        if size_bytes >= max_bytes:
            break
    if not parts:
        raise FileNotFoundError(f"no Python source files under {root}")
    return np.frombuffer(b"".join(parts)[:max_bytes], np.uint8)


def batches(corpus: Tokens, *, steps: int, batch: int, sequence: int, seed: int) -> Tokens:
    """`[steps, batch, sequence + 1]` bytes: runs of text at random places of the corpus.

    The one token more is what the last one is to predict. Raises ValueError where the corpus
    is shorter than one such run.
    """
    last = len(corpus) - sequence - 1
    if last < 0:
        raise ValueError(
            f"a sequence of {pluralize(sequence, 'byte')} needs more text than "
            f"{pluralize(len(corpus), 'byte')}"
        )
    starts = np.random.default_rng(seed).integers(0, last, (steps, batch), endpoint=True)
    return corpus[starts[..., None] + np.arange(sequence + 1)]
