"""The rendezvous alone, in C++: threads as ranks, with and without the thread sanitizer."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
from support.devices.native_code import CSRC, NATIVE, compile_native, names_of_tests

pytestmark = [pytest.mark.once, pytest.mark.long]

TESTS = (NATIVE / "rendezvous_test.cc", NATIVE / "rendezvous_failures_test.cc")
SOURCES = (*TESTS, CSRC / "rendezvous.cc")
CHECKS = names_of_tests(*TESTS)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_native(tmp_path_factory.mktemp("native") / "rendezvous_test", SOURCES, "-O1")


@pytest.mark.parametrize("check", CHECKS)
def test_rendezvous(program: Path, check: str) -> None:
    result = subprocess.run([program, check], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_check_is_run(program: Path) -> None:
    listed = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(CHECKS) == listed.stdout.split()
    assert len(CHECKS) > 20


@pytest.mark.skipif(platform.machine() != "x86_64", reason="tried on x86_64 alone")
def test_no_data_race(tmp_path: Path) -> None:
    flags = ("-O0", "-g1", "-fsanitize=thread")
    program = compile_native(tmp_path / "rendezvous_test", SOURCES, *flags)
    # The sanitizer cannot place its shadow memory under every address randomisation.
    command = ["setarch", platform.machine(), "-R", str(program), *CHECKS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if "setarch" in result.stderr:
        pytest.skip(f"no thread sanitizer here: {result.stderr.strip()}")
    assert (result.returncode, result.stderr) == (0, "")
