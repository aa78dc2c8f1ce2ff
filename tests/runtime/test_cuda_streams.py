"""The CUDA kernels with several ranks as streams of one GPU.

Where there is no GPU the same checks run on the fake driver, which shows that they can pass, and
that they are launched as the driver wants it; not that the kernels are right on a GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.devices.cuda_on_cpu import compile_driver
from support.devices.cuda_streams import CHECKS

SCRIPT = ROOT / "tests" / "support" / "devices" / "cuda_streams.py"

SANITIZER = "compute-sanitizer"

LAUNCHES = "1000"
SOME_LAUNCHES = "20"
"""As many as slow devices, or a slow tool, bear."""


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("cuda_driver"))


def run(*command: str, **environment: str) -> str:
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=os.environ | environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.h100
@pytest.mark.parametrize("check", CHECKS)
def test_on_the_fake_driver(driver_folder: Path, check: str) -> None:
    folder = str(driver_folder)
    printed = run(sys.executable, str(SCRIPT), check, SOME_LAUNCHES, LD_LIBRARY_PATH=folder)
    assert printed == "well\n"


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS)
def test_on_a_gpu(check: str) -> None:
    assert run(sys.executable, str(SCRIPT), check, LAUNCHES) == "well\n"


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("check", ["barriers_hold", "exchanges_are_right"])
def test_the_sanitizer_finds_nothing(check: str, tool: str) -> None:
    if shutil.which(SANITIZER) is None:
        pytest.skip(f"no {SANITIZER} on this machine")
    options = ("--tool", tool, "--error-exitcode", "1")
    command = (SANITIZER, *options, sys.executable, str(SCRIPT), check, SOME_LAUNCHES)
    assert "well\n" in run(*command)
