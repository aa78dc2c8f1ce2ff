"""Runs tests marked `gpu`, and the sanitizer, in a child."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import Note
from benchmarks.gpu.harness import TESTS, of_tests
from benchmarks.gpu.items import ROOT, Skip

SANITIZER = "compute-sanitizer"

_MARK = "mark.gpu"
_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
_TAIL_CHARACTERS = 1500

_OPTIONS = (
    "-m",
    "gpu",
    # Without the options of the repository, which ask for plugins that may not be installed.
    "--override-ini=addopts=",
    "-p",
    "no:cacheprovider",
    f"--rootdir={ROOT}",
    "-c",
    str(ROOT / "pyproject.toml"),
)


class _Watch:
    """A plugin of pytest that keeps what it is told."""

    def __init__(self) -> None:
        self.tests: list[str] = []
        self.not_read: dict[str, str] = {}
        self.outcomes: list[tuple[str, str]] = []
        self.why = ""

    def pytest_collection_finish(self, session: Any) -> None:
        self.tests = [item.nodeid for item in session.items]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            *_, last = str(report.longrepr).strip().splitlines()
            self.not_read[report.nodeid] = last

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.outcomes.append((report.when, report.outcome))
        if report.skipped and isinstance(report.longrepr, tuple):
            self.why = str(report.longrepr[2])
        elif report.failed:
            self.why = str(report.longrepr)[-_TAIL_CHARACTERS:]


def _pytest(arguments: Sequence[str]) -> tuple[_Watch, int]:
    """Runs pytest in this process, from a folder in which nothing hides the installed hloom."""
    import pytest

    watch = _Watch()
    return watch, int(pytest.main([*_OPTIONS, *arguments], plugins=[watch]))


def list_tests(note: Note) -> dict[str, Any]:
    """The tests marked `gpu`, and of files that could not be read, why."""
    files = sorted(str(f) for f in TESTS.rglob("test_*.py") if _MARK in f.read_text("utf-8"))
    options = ["--collect-only", "--quiet", "--continue-on-collection-errors"]
    watch, _ = _pytest([*options, *files])
    if not watch.tests and not watch.not_read:
        raise RuntimeError(f"pytest finds no test marked gpu in {len(files)} files")
    return {"tests": watch.tests, "not_read": watch.not_read}


def run_test(note: Note, test: str) -> dict[str, Any]:
    """One test. Raises AssertionError where it fails, Skip where it is skipped."""
    watch, code = _pytest([f"{ROOT}/{test}"])
    outcomes = {outcome for _, outcome in watch.outcomes}
    if "failed" in outcomes or not watch.outcomes:
        raise AssertionError(watch.why or f"pytest ended with {code} and ran nothing")
    if "skipped" in outcomes:
        raise Skip(watch.why)
    return {"outcome": "passed"}


def list_checks(note: Note) -> list[str]:
    """What tests/support/devices/cuda_streams.py can check of the kernels."""
    return list(of_tests("support.devices.cuda_streams").CHECKS)


def run_sanitizer(
    note: Note, tool: str, check: str, launches: int, dry_run: bool, driver: str | None
) -> dict[str, Any]:
    """One tool of the sanitizer on one check of the kernels.

    In a dry run the check runs without the tool, on the fake driver in the folder `driver`. Raises
    AssertionError with what the tool said where it found something.
    """
    command = [
        sys.executable,
        str(TESTS / "support" / "devices" / "cuda_streams.py"),
        check,
        str(launches),
    ]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    if dry_run:
        if driver is None:
            raise Skip("a dry run without the fake driver")
        environment["LD_LIBRARY_PATH"] = driver
    else:
        command = [_sanitizer(), "--tool", tool, "--error-exitcode", "1", *command]
    result = subprocess.run(command, capture_output=True, text=True, timeout=190, env=environment)
    said = (result.stdout + result.stderr)[-_TAIL_CHARACTERS:]
    if result.returncode or "well\n" not in result.stdout:
        raise AssertionError(f"exit code {result.returncode}: {said}")
    return {"said": said}


def _sanitizer() -> str:
    search = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    found = shutil.which(SANITIZER, path=search)
    if found is None:
        raise Skip(f"there is no {SANITIZER} on this machine")
    return str(Path(found))
