"""NVIDIA's run-time compiler, and what it makes of the kernels, without a GPU."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hloom.runtime import cuda_images, nvrtc

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
KERNELS = ("barrier", "ragged_all_to_all")
FUNCTIONS = {"barrier": b"hloom_barrier", "ragged_all_to_all": b"hloom_ragged_all_to_all"}

ELF = b"\x7fELF"

SMALL = nvrtc.CudaSource(
    "small.cu", '#include "answer.cuh"\n__global__ void f(int* x) { *x = ANSWER; }', {}
)


def small(answer: int) -> nvrtc.CudaSource:
    return nvrtc.CudaSource(SMALL.name, SMALL.text, {"answer.cuh": f"#define ANSWER {answer}\n"})


@pytest.fixture(scope="module")
def compiler() -> nvrtc.Nvrtc:
    return nvrtc.load()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of images, and nothing remembered in the process."""
    monkeypatch.setenv("HLOOM_CACHE_DIR", str(tmp_path))
    cuda_images.image.cache_clear()
    yield tmp_path / "kernels"
    cuda_images.image.cache_clear()


@pytest.mark.h100
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_without_a_gpu(
    compiler: nvrtc.Nvrtc, cache: Path, kernel: str, architecture: str
) -> None:
    made = cuda_images.image(kernel, architecture)
    assert made.startswith(ELF)
    assert FUNCTIONS[kernel] in made
    # Two compiles give the same bytes, so that a program has one key in JAX's compilation cache.
    assert compiler.compile(cuda_images.source(kernel), architecture, cuda_images.OPTIONS) == made


@pytest.mark.h100
def test_an_error_shows_the_log(compiler: nvrtc.Nvrtc) -> None:
    bad = nvrtc.CudaSource("bad.cu", "__global__ void f(int* x) { *x = unknown; }", {})
    with pytest.raises(nvrtc.CompileError) as raised:
        compiler.compile(bad, "sm_90")
    assert str(raised.value).startswith(f"bad.cu does not compile for sm_90 with {compiler}:\nbad.")
    assert 'identifier "unknown" is undefined' in str(raised.value)


@pytest.mark.h100
def test_headers_come_from_memory(compiler: nvrtc.Nvrtc) -> None:
    assert compiler.compile(small(1), "sm_90").startswith(ELF)
    with pytest.raises(nvrtc.CompileError, match="answer"):
        compiler.compile(SMALL, "sm_90")


@pytest.mark.h100
def test_an_unknown_architecture_is_told_from_an_error(compiler: nvrtc.Nvrtc) -> None:
    with pytest.raises(nvrtc.UnknownArchitectureError) as raised:
        compiler.compile(small(1), "sm_20")
    assert str(raised.value).startswith(
        f"NVRTC {compiler.version[0]}.{compiler.version[1]} does not compile for sm_20, only for "
        "sm_"
    )
    assert "sm_90" in str(raised.value)


@pytest.mark.h100
def test_a_wrong_option_is_an_error(compiler: nvrtc.Nvrtc) -> None:
    with pytest.raises(nvrtc.CompileError, match="NVRTC"):
        compiler.compile(small(1), "sm_90", ["--no-such-option"])


def test_without_a_compiler_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.so").write_text("no library")
    monkeypatch.setattr(nvrtc, "candidates", lambda: (str(tmp_path / "broken.so"), "libnone.so"))
    with pytest.raises(nvrtc.CompilerMissingError) as raised:
        nvrtc.load.__wrapped__()
    assert "pip install 'hloom[cuda13]'" in str(raised.value)
    assert "broken.so" in str(raised.value)
    assert "libnone.so" in str(raised.value)


def test_a_library_that_is_something_else_is_no_compiler() -> None:
    with pytest.raises(nvrtc.CompilerMissingError, match="cannot be loaded as NVRTC"):
        nvrtc.Nvrtc("libc.so.6")


def test_toolkits_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    assert "/opt/cuda/lib64/libnvrtc.so" in nvrtc.candidates()
    assert nvrtc.candidates()[-1] == "libnvrtc.so"


@pytest.mark.h100
def test_an_image_is_compiled_once(
    compiler: nvrtc.Nvrtc, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "hloom.runtime"):
        first = cuda_images.image("barrier", "sm_90")
        cuda_images.image.cache_clear()
        assert cuda_images.image("barrier", "sm_90") == first
    compiled, read = (record.getMessage() for record in caplog.records)
    assert compiled == (f"kernel barrier for sm_90: compiled with {compiler}, {len(first)} bytes")
    [file] = cache.iterdir()
    assert read == f"kernel barrier for sm_90: read from {file}"


def test_what_decides_the_bytes_decides_the_key() -> None:
    keys = {
        cuda_images.key(small(1), "sm_90", (13, 0)),
        cuda_images.key(small(2), "sm_90", (13, 0)),
        cuda_images.key(small(1), "sm_80", (13, 0)),
        cuda_images.key(small(1), "sm_90", (13, 1)),
        cuda_images.key(SMALL, "sm_90", (13, 0)),
        cuda_images.key(nvrtc.CudaSource("other.cu", SMALL.text, {}), "sm_90", (13, 0)),
    }
    assert len(keys) == 6
    assert cuda_images.key(small(1), "sm_90", (13, 0)) in keys


@pytest.mark.h100
@pytest.mark.parametrize("damage", [b"", b"short", bytes(4000)])
def test_a_damaged_file_is_made_again(compiler: nvrtc.Nvrtc, cache: Path, damage: bytes) -> None:
    first = cuda_images.image("barrier", "sm_90")
    [file] = cache.iterdir()
    whole = file.read_bytes()
    assert whole == hashlib.sha256(first).digest() + first
    file.write_bytes(damage)
    cuda_images.image.cache_clear()
    assert cuda_images.image("barrier", "sm_90") == first
    assert file.read_bytes() == whole


@pytest.mark.h100
def test_many_at_once_leave_one_whole_file(compiler: nvrtc.Nvrtc, cache: Path) -> None:
    uncached = cuda_images.image.__wrapped__
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: uncached("barrier", "sm_90"), range(8)))
    [image] = made
    [file] = cache.iterdir()
    assert file.read_bytes().endswith(image)


@pytest.mark.h100
def test_a_disk_that_refuses_costs_time_only(
    compiler: nvrtc.Nvrtc,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HLOOM_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "hloom.runtime"):
        assert cuda_images.image.__wrapped__("barrier", "sm_90").startswith(ELF)
    assert [record.getMessage()[:27] for record in caplog.records] == [
        "kernel images are not kept:"
    ]


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HLOOM_CACHE_DIR": "/a"}, "/a/kernels"),
        ({"HLOOM_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a/kernels"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/hloom/kernels"),
        ({"XDG_CACHE_HOME": "not/absolute"}, "/home/.cache/hloom/kernels"),
        ({}, "/home/.cache/hloom/kernels"),
    ],
)
def test_where_images_are_kept(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str
) -> None:
    for name in ("HLOOM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"HOME": "/home"}).items():
        monkeypatch.setenv(name, value)
    assert str(cuda_images.cache_dir()) == folder


@pytest.mark.h100
def test_files_of_the_cache_are_readable_by_their_owner_alone(
    compiler: nvrtc.Nvrtc, cache: Path
) -> None:
    cuda_images.image("barrier", "sm_90")
    [file] = cache.iterdir()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
