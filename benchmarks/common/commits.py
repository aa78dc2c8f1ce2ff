"""Which commit of hloom a result is of."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def git_commit(root: Path = ROOT) -> str | None:
    """Git's commit of a repository, "+" behind it where files differ; None where git has none.

    Files that git does not track, and results, which are what is being written, do not count.
    """
    found = said("git", "-C", str(root), "rev-parse", "HEAD")
    if not found:
        return None
    others = ("--", ".", ":(exclude)benchmarks/results", ":(exclude)docs")
    state = ("status", "--porcelain", "--untracked-files=no", *others)
    return found + ("+" if said("git", "-C", str(root), *state) else "")


def said(*command: str) -> str | None:
    """What a command prints; None where it is not there or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
