"""Disks that are full, and folders that must not be written or read: one warning, and on."""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.dumps.failures import BrokenArrays, missing_texts, submit_and_wait
from support.dumps.samples import capture

import hloom
from hloom.dumps.collect.store import LiveModule
from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.dump import DumpError, open_dump
from hloom.dumps.write import module as module_folder
from hloom.dumps.write.module import write_module
from hloom.dumps.write.writer import write_step

pytestmark = pytest.mark.once


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 128 KiB, less than the dump of one step takes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk cannot be mounted here; the next test has a limit for files")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_warning_and_leaves_nothing(small_disk: Path, ran: Execution) -> None:
    with pytest.warns(hloom.HloomWarning) as told:
        submit_and_wait(small_disk, *[ran] * 4)
    submit_and_wait(small_disk, *[ran] * 4, step=4)
    assert [str(each.message).split(":")[0] for each in told] == [
        "hloom cannot write the dump of step 3"
    ]
    assert "No space left on device" in str(told[0].message)
    assert list(small_disk.iterdir()) == []
    submit_and_wait(small_disk, Execution("jit_f", None, None), step=5)
    assert open_dump(small_disk).step == 5, "as soon as there is room, steps are written again"


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond a size: `ulimit -f`."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def test_a_limit_for_files_is_one_warning_and_leaves_nothing(
    tmp_path: Path, ran: Execution, live: LiveModule
) -> None:
    def write_all() -> list[Path | None]:
        for step in range(3):
            submit_and_wait(tmp_path, ran, step=step)
        return [write_module(live, each, tmp_path) for each in (ran.executable, None)]

    with pytest.warns(hloom.HloomWarning) as told, file_size_limit(16 << 10):
        folders = write_all()
    assert [str(each.message) for each in told] == [
        "hloom cannot write the dump of step 0: [Errno 27] File too large"
    ]
    assert folders == [None, None]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["write_manifest", "write_artifacts", "write_file"])
def test_a_disk_that_fails_anywhere_leaves_nothing(
    tmp_path: Path,
    ran: Execution,
    live: LiveModule,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module_folder, where, fail)
    with pytest.warns(hloom.HloomWarning, match="No space left on device") as told:
        assert write_module(live, ran.executable, tmp_path / "at-compile") is None
    submit_and_wait(tmp_path / "at-compile", ran)
    assert len(told) == 1, "of one folder there is one warning"
    with pytest.warns(hloom.HloomWarning, match="cannot write the dump of step 3"):
        submit_and_wait(tmp_path / "steps", ran)
    assert list((tmp_path / "at-compile").iterdir()) == []
    assert list((tmp_path / "steps").iterdir()) == []


def test_a_disk_that_arrays_have_filled_has_room_for_the_rest(
    small_disk: Path, ran: Execution
) -> None:
    class Big(BrokenArrays):
        def write(self, folder: Path) -> None:
            folder.mkdir()
            (folder / "values").write_bytes(b"1" * (1 << 20))

    given: Any = Big(ValueError())
    step = dataclasses.replace(ran, kept=None, executable=None, arguments=given)
    with pytest.warns(hloom.HloomWarning, match="the arrays of step 3: .*No space left on device"):
        submit_and_wait(small_disk, step)
    assert open_dump(small_disk).modules[0].manifest["files"] == {}


# No permission.


NOBODY = 65534


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """The process has no rights of root, which may write anywhere."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
        yield
        os.seteuid(0)
    else:
        yield


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder of root's that anybody can reach, but only root may change."""
    # Not in tmp_path, which nobody but root can reach.
    with tempfile.TemporaryDirectory() as reachable:
        Path(reachable).chmod(0o755)
        folder = Path(reachable) / "closed"
        folder.mkdir(mode=0o555)
        yield folder


def test_a_folder_that_must_not_be_written_is_one_warning(
    open_folder: Path, ran: Execution, live: LiveModule, as_nobody: None
) -> None:
    with pytest.warns(hloom.HloomWarning, match="Permission denied") as told:
        submit_and_wait(open_folder, ran)
    submit_and_wait(open_folder, ran, step=4)
    assert write_module(live, ran.executable, open_folder) is None
    assert len(told) == 1
    assert list(open_folder.iterdir()) == []


@pytest.fixture
def secret_folder(open_folder: Path) -> Path:
    """A folder that only root may read."""
    open_folder.chmod(0o000)
    return open_folder


@pytest.fixture
def secret_step(secret_folder: Path) -> Path:
    """A step that only root may read."""
    return secret_folder.rename(secret_folder.with_name("step-7"))


def test_a_folder_that_must_not_be_read_is_an_error(secret_folder: Path, as_nobody: None) -> None:
    with pytest.raises(DumpError, match="closed cannot be read: Permission denied"):
        open_dump(secret_folder)


def test_a_step_that_must_not_be_read_is_not_hidden(secret_step: Path, as_nobody: None) -> None:
    with pytest.raises(DumpError, match="cannot be read: Permission denied"):
        open_dump(secret_step.parent)


@pytest.fixture
def partly_secret_step(open_folder: Path, ran: Execution) -> Path:
    """A step of two modules, and of a second process, where some only root may read."""
    process = write_step(capture(open_folder.parent / "dumps", [ran, ran]))
    shutil.copytree(process, process.with_name("process-1"))
    for folder in (process / "jit_scanned_step-1", process.with_name("process-1")):
        folder.chmod(0o000)
    return process.parent


def test_parts_that_must_not_be_read_are_missing(partly_secret_step: Path, as_nobody: None) -> None:
    dump = open_dump(partly_secret_step)
    assert dump.processes == (0,)
    assert [module.folder.name for module in dump.modules] == ["jit_scanned_step-0"]
    assert dump.modules[0].array_folders("arguments") == ()
    remedy = "(give yourself the right to read it)"
    assert missing_texts(dump) == [
        "process-0: module jit_scanned_step-1: jit_scanned_step-1 cannot be read: Permission "
        f"denied {remedy}",
        f"process 1: process-1 cannot be read: Permission denied {remedy}",
    ]
    with pytest.raises(DumpError, match="process-1 cannot be read: Permission denied"):
        open_dump(partly_secret_step / "process-1")


def test_a_file_in_the_place_of_the_folder_is_one_warning(
    tmp_path: Path, ran: Execution, live: LiveModule
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(hloom.HloomWarning, match="File exists"):
        submit_and_wait(tmp_path / "file", ran)
    with pytest.warns(hloom.HloomWarning, match="Not a directory"):
        assert write_module(live, ran.executable, tmp_path / "file" / "below") is None
    assert (tmp_path / "file").read_text() == ""


def test_the_folder_may_go_while_the_program_runs(tmp_path: Path, ran: Execution) -> None:
    root = tmp_path / "dumps"
    submit_and_wait(root, ran)
    shutil.rmtree(root)
    submit_and_wait(root, ran, step=4)
    assert open_dump(root).step == 4
