"""The cache of kernels is used only where nobody but this user can have filled it."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hloom.runtime import cuda_images, nvrtc

pytestmark = pytest.mark.once

MADE = b"\x7fELF made here"
PLANTED = b"\x7fELF planted"


class Nvrtc:
    """Stands for NVRTC, and counts."""

    version = (13, 0)

    def __init__(self) -> None:
        self.compiles = 0

    def compile(self, source: nvrtc.CudaSource, architecture: str, options: Sequence[str]) -> bytes:
        self.compiles += 1
        return MADE

    def __str__(self) -> str:
        return "NVRTC 13.0"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Nvrtc:
    made = Nvrtc()
    monkeypatch.setattr(nvrtc, "load", lambda: made)
    return made


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HLOOM_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "kernels"
    cuda_images.image.cache_clear()


def image() -> bytes:
    cuda_images.image.cache_clear()
    return cuda_images.image("barrier", "sm_90")


def stored(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings since it was last asked."""

    def since() -> list[str]:
        messages = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        caplog.clear()
        return messages

    return since


def test_it_is_private_whatever_the_umask(
    compiler: Nvrtc, cache: Path, told: Callable[[], list[str]]
) -> None:
    before = os.umask(0)
    try:
        assert image() == image() == MADE
    finally:
        os.umask(before)
    [file] = cache.iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (cache.parent, cache, file)]
    assert modes == [0o700, 0o700, 0o600]
    assert compiler.compiles == 1
    assert told() == []


def plant_writable(file: Path) -> None:
    file.write_bytes(stored(PLANTED))
    file.chmod(0o666)


def plant_link(file: Path) -> None:
    aim = file.parent.parent / "aim"
    aim.write_bytes(stored(PLANTED))
    aim.chmod(0o600)
    file.symlink_to(aim)


def plant_large(file: Path) -> None:
    file.touch(mode=0o600)
    os.truncate(file, 2**40)


def plant_damaged(file: Path) -> None:
    file.write_bytes(hashlib.sha256(b"other").digest() + PLANTED)
    file.chmod(0o600)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (plant_writable, "others can write to it (chmod go-w "),
        (plant_link, "it is no regular file"),
        (lambda file: os.mkfifo(file, 0o600), "it is no regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "it is no regular file"),
        (plant_large, "it has more than 64 MiB"),
        (plant_damaged, "it is not as it was written"),
    ],
)
def test_what_was_put_there_is_compiled_again_and_replaced(
    compiler: Nvrtc,
    cache: Path,
    told: Callable[[], list[str]],
    plant: Callable[[Path], None],
    said: str,
) -> None:
    image()
    [file] = cache.iterdir()
    file.unlink()
    plant(file)
    assert image() == MADE
    [line] = told()
    assert line.startswith(f"{file} is not used: {said}")
    assert line.endswith("; kernel barrier is compiled again")
    assert not file.is_symlink()
    assert file.read_bytes() == stored(MADE)
    assert image() == MADE
    assert compiler.compiles == 2
    assert told() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_another_user_is_not_used(
    compiler: Nvrtc, cache: Path, told: Callable[[], list[str]], what: str
) -> None:
    image()
    [file] = cache.iterdir()
    file.write_bytes(stored(PLANTED))
    os.chown(cache if what == "folder" else file, 12345, 12345)
    assert image() == MADE
    [line] = told()
    assert "is not used: it belongs to another user" in line


def test_a_folder_that_others_can_write_to_is_neither_read_nor_written(
    compiler: Nvrtc, cache: Path, told: Callable[[], list[str]]
) -> None:
    image()
    [file] = cache.iterdir()
    file.write_bytes(stored(PLANTED))
    cache.chmod(0o777)
    assert image() == MADE
    assert told() == [
        f"kernel images are not kept: {cache} is not used: others can write to it "
        f"(chmod go-w {cache})"
    ]
    assert file.read_bytes() == stored(PLANTED)


def test_a_folder_that_is_a_link_is_not_used(
    compiler: Nvrtc, cache: Path, told: Callable[[], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.parent.mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    assert image() == MADE
    [line] = told()
    assert line.startswith(f"kernel images are not kept: {cache}: ")
    assert list((tmp_path / "elsewhere").iterdir()) == []


SCRIPT = """
from hloom.runtime import cuda_images, nvrtc

class Nvrtc:
    version = (13, 0)
    compile = lambda *_: b"made"
    __str__ = lambda _: "NVRTC 13.0"

nvrtc.load = Nvrtc
assert cuda_images.image("barrier", "sm_90") == b"made"
"""


@pytest.mark.parametrize("path", ["fifo", "/dev/zero"])
def test_a_folder_that_is_something_else_keeps_nobody_waiting(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    for place in (path, f"{path}/in"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"HLOOM_CACHE_DIR": str(tmp_path / place)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("\n") == 1
        assert "kernel images are not kept: " in done.stderr
