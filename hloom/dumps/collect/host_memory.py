"""How much memory this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""A container's own limit, in the files of Linux's control groups, version 2 and 1."""


def memory_bytes() -> int:
    """The machine's memory, or the container's limit where that is lower."""
    whole_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole_bytes, *(limit for file in _LIMITS for limit in _limit(Path(file)))])


def _limit(file: Path) -> list[int]:
    """The number in a file; nothing where there is none, "max" for example."""
    try:
        return [int(file.read_text(encoding="ascii"))]
    except (OSError, ValueError):
        return []
