"""Programs, passes and tools that several tests use; no tests."""

import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]
"""The fixture `run_python` of conftest.py."""
