"""Programs, passes and tools that several tests use; no tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloom.passes.framework.base import Pass

ROOT = Path(__file__).parents[2]

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]
"""The fixture `run_python` of conftest.py."""


def often(usually: int, thoroughly: int) -> int:
    """How much a test does of what goes wrong once in a while: `make test-all` does it thoroughly,
    with TESTS_THOROUGH=1."""
    return thoroughly if os.environ.get("TESTS_THOROUGH") == "1" else usually


def xla_flags(devices: int) -> str:
    """XLA_FLAGS of a process with so many virtual devices, and with what the suite adds."""
    added = os.environ.get("TESTS_XLA_FLAGS", "")
    return f"--xla_force_host_platform_device_count={devices} {added}".strip()


def registering(*passes: type[Pass], scope: str = "function") -> Callable[[], Iterator[None]]:
    """The fixture of a file whose every test finds these passes registered; the file names it."""
    import pytest

    from hloom.passes.framework import registry

    @pytest.fixture(autouse=True, scope=scope)  # type: ignore[call-overload]
    def passes_are_registered() -> Iterator[None]:
        with registry.registered(*passes):
            yield

    return passes_are_registered
