"""The CUDA side of the native library without CUDA: its runs, and its handlers on a fake driver.

The fake driver's devices are threads that run the real kernels, compiled for the CPU.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import jax.ffi
import pytest
from support.devices.cuda_on_cpu import CUDA, FAKE, KERNELS, PADS, compile_driver
from support.devices.native_code import CSRC, compile_native, names_of_tests

from hloom.runtime import load_library

pytestmark = pytest.mark.long

RUNS_SOURCES = (CUDA / "runs_test.cc", CSRC / "cuda" / "runs.cc", CSRC / "rendezvous.cc", *PADS)
PAD_HEADER = "-I", str(KERNELS)
HANDLER_SOURCES = (CUDA / "handlers_test.cc", FAKE / "fake_xla.cc")
AT_ONCE_SOURCES = (CUDA / "runs_at_once_test.cc", FAKE / "fake_xla.cc")


RUNS_CHECKS = names_of_tests(RUNS_SOURCES[0])
WITHOUT_DRIVER = "TheCompileNeedsNoDriver"
HANDLER_CHECKS = [check for check in names_of_tests(HANDLER_SOURCES[0]) if check != WITHOUT_DRIVER]
AT_ONCE_CHECKS = names_of_tests(AT_ONCE_SOURCES[0])


@pytest.fixture(scope="module")
def runs_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda_runs")
    return compile_native(folder / "runs_test", RUNS_SOURCES, "-O1", *PAD_HEADER)


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=os.environ | environment
    )


@pytest.mark.once
@pytest.mark.parametrize("check", RUNS_CHECKS)
def test_runs(runs_program: Path, check: str) -> None:
    result = run([str(runs_program), check])
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.once
@pytest.mark.skipif(platform.machine() != "x86_64", reason="tried on x86_64 alone")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_a_sanitizer_finds_nothing_in_runs(sanitizer: str, tmp_path: Path) -> None:
    checked = ("-fno-sanitize-recover=all", f"-fsanitize={sanitizer}")
    flags = ("-g1", *checked, *PAD_HEADER)
    program = compile_native(tmp_path / "runs_test", RUNS_SOURCES, *flags)
    # The sanitizer cannot place its shadow memory under every address randomisation.
    result = run(["setarch", platform.machine(), "-R", str(program), *RUNS_CHECKS])
    if "setarch" in result.stderr:
        pytest.skip(f"no sanitizer here: {result.stderr.strip()}")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the fake libcuda.so.1."""
    return compile_driver(tmp_path_factory.mktemp("cuda_driver"))


def of_library(folder: Path, sources: tuple[Path, ...]) -> list[str]:
    """The command that runs checks of the handlers in the installed library."""
    library = load_library()
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    version = re.findall(r"XLA_FFI_API_(?:MAJOR|MINOR) (\d+)$", header.read_text("utf-8"), re.M)
    if tuple(map(int, version)) != library.ffi_version:
        pytest.skip("the fake XLA is of the version that the library is built against")
    program = compile_native(folder / sources[0].stem, sources, "-O1", "-ldl")
    return [str(program), str(library.path)]


@pytest.fixture(scope="module")
def handlers_program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return of_library(tmp_path_factory.mktemp("cuda_handlers"), HANDLER_SOURCES)


@pytest.fixture(scope="module")
def at_once_program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return of_library(tmp_path_factory.mktemp("cuda_at_once"), AT_ONCE_SOURCES)


@pytest.mark.parametrize("check", HANDLER_CHECKS)
def test_handlers(handlers_program: list[str], driver_folder: Path, check: str) -> None:
    result = run([*handlers_program, check], LD_LIBRARY_PATH=str(driver_folder))
    said = "" if check != "ALateRankIsNamedAndComes" else result.stderr
    assert (result.returncode, result.stderr) == (0, said)


@pytest.mark.parametrize("check", AT_ONCE_CHECKS)
def test_runs_at_once(at_once_program: list[str], driver_folder: Path, check: str) -> None:
    result = run([*at_once_program, check], LD_LIBRARY_PATH=str(driver_folder))
    assert (result.returncode, result.stderr) == (0, "")


def test_who_is_awaited_for_too_long_is_said_and_may_come(
    handlers_program: list[str], driver_folder: Path
) -> None:
    command = [*handlers_program, "ALateRankIsNamedAndComes"]
    result = run(command, LD_LIBRARY_PATH=str(driver_folder))
    said = [re.sub(r"\d\.\d s", "N s", line) for line in result.stderr.splitlines()]
    wanted = [
        f"hloom: hloom.barrier, entry of @kernel (channel 3): device {device} has waited N s for "
        "device 2; it goes on waiting."
        for device in (0, 1, 3)
    ]
    assert (result.returncode, sorted(said)) == (0, wanted)


def test_a_program_compiles_where_there_is_no_driver(
    handlers_program: list[str], tmp_path: Path
) -> None:
    # An empty file in the first place that is searched hides a driver of this machine.
    (tmp_path / "libcuda.so.1").touch()
    result = run([*handlers_program, WITHOUT_DRIVER], LD_LIBRARY_PATH=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert "libcuda.so.1: file too short" in result.stdout


def test_an_old_driver_is_told_from_a_new_one(handlers_program: list[str], tmp_path: Path) -> None:
    folder = compile_driver(tmp_path, "-DHLOOM_FAKE_OLD_DRIVER")
    result = run([*handlers_program, WITHOUT_DRIVER], LD_LIBRARY_PATH=str(folder))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == (
        "hloom.token: libcuda.so.1 has no cuLibraryLoadData: hloom needs the driver of CUDA 12.0 "
        "or later"
    )


PEERS = """
from hloom.runtime import cuda_peers
print(cuda_peers.cannot_address([0, 1, 2]), cuda_peers.cannot_address([0, 99]))
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_driver.restype = ctypes.POINTER(ctypes.c_void_p * 12)
deny = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int)(driver.fake_driver().contents[9])
deny(2, 1)
print(cuda_peers.cannot_address([0, 1]), cuda_peers.cannot_address([2, 0, 1, 1]))
"""


def test_who_can_address_whom(driver_folder: Path) -> None:
    result = run([sys.executable, "-c", PEERS], LD_LIBRARY_PATH=str(driver_folder))
    assert (result.stdout.splitlines(), result.stderr) == (["None None", "None (2, 1)"], "")


def test_without_a_driver_nothing_is_known_against_a_pair(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    script = "from hloom.runtime import cuda_peers; print(cuda_peers.cannot_address([0, 1]))"
    result = run([sys.executable, "-c", script], LD_LIBRARY_PATH=str(tmp_path))
    assert (result.stdout, result.stderr) == ("None\n", "")
