"""Programs, passes and tools that several tests use; no tests."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]
"""The fixture `run_python` of conftest.py."""


def often(usually: int, thoroughly: int) -> int:
    """How much a test does of what goes wrong once in a while: `make test-all` does it thoroughly,
    with TESTS_THOROUGH=1."""
    return thoroughly if os.environ.get("TESTS_THOROUGH") == "1" else usually
