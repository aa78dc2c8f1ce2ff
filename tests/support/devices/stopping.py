"""Processes that stop themselves, as a debugger or a scheduler stops them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def stopped_for(seconds: float, pid: int) -> None:
    """Waits until a process has stopped itself, and lets it go on that many seconds later."""
    stat = Path(f"/proc/{pid}/stat")
    while (state := stat.read_text(encoding="ascii").rpartition(")")[2].split()[0]) != "T":
        assert state != "Z"
        time.sleep(0.1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
