"""The writer in the background: nobody waits for it, and it outlives what fails.

Parts of a dump that fail by themselves: they are missing, and the rest is written.

Disks that are full, and folders that must not be written or read: one warning, and on.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import shutil
import subprocess
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.dumps.failures import BrokenArrays, missing_texts, submit_and_wait
from support.dumps.samples import capture

import hloom
from hloom.dumps.collect.store import LiveModule
from hloom.dumps.collect.tracer import Execution, StepCapture
from hloom.dumps.read.dump import DumpError, open_dump
from hloom.dumps.write import atomic_dirs, writer
from hloom.dumps.write import module as module_folder
from hloom.dumps.write.module import write_module
from hloom.dumps.write.writer import Writer, write_step

pytestmark = pytest.mark.once


@pytest.fixture
def started_writer() -> Iterator[Writer]:
    made = Writer(max_waiting=2)
    yield made
    made.close(timeout_s=60)


def write_all(thread: Writer, captures: list[StepCapture]) -> None:
    """Hands steps over, and waits until they are written."""
    for each in captures:
        assert thread.submit(each)
    assert thread.flush(timeout_s=60)


class HeldUp:
    """Stands in for `write_step`: waits to be let go, and counts."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.steps: list[int] = []

    def __call__(self, capture: StepCapture) -> Path:
        self.entered.set()
        assert self.let_go.wait(60)
        self.steps.append(capture.step)
        return capture.settings.to


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldUp]:
    held = HeldUp()
    monkeypatch.setattr(writer, "write_step", held)
    yield held
    held.let_go.set()


def test_handing_a_step_over_waits_for_nothing(
    tmp_path: Path, started_writer: Writer, held_up: HeldUp
) -> None:
    assert started_writer.submit(capture(tmp_path, [], step=0))
    assert held_up.entered.wait(60)
    assert started_writer.submit(capture(tmp_path, [], step=1))
    assert started_writer.submit(capture(tmp_path, [], step=2))
    with pytest.warns(hloom.HloomWarning, match="step 3 is not dumped: 2 steps before") as told:
        assert not any(started_writer.submit(capture(tmp_path, [], step=n)) for n in (3, 4))
    assert len(told) == 1
    assert not started_writer.flush(timeout_s=0)
    held_up.let_go.set()
    assert started_writer.flush(timeout_s=60)
    assert held_up.steps == [0, 1, 2]
    assert started_writer.submit(capture(tmp_path, [], step=5))


def test_a_writer_that_is_closed_tells_what_is_left(
    tmp_path: Path, started_writer: Writer, held_up: HeldUp
) -> None:
    for step in range(2):
        started_writer.submit(capture(tmp_path, [], step=step))
        assert held_up.entered.wait(60)
    assert started_writer.close(timeout_s=0) == 2
    with pytest.warns(hloom.HloomWarning):
        assert not started_writer.submit(capture(tmp_path, [], step=9))


def test_the_end_of_the_program_is_not_held_up(
    tmp_path: Path, held_up: HeldUp, capsys: pytest.CaptureFixture[str]
) -> None:
    writer.submit(capture(tmp_path, [], step=0))
    assert held_up.entered.wait(60)
    writer.finish(timeout_s=0)
    assert "hloom: 1 step not dumped: not written 0 s after" in capsys.readouterr().err
    writer.finish(timeout_s=0)
    assert capsys.readouterr().err == ""
    held_up.let_go.set()


def test_after_a_failure_the_next_step_is_written(
    tmp_path: Path, started_writer: Writer, ran: Execution
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.warns(hloom.HloomWarning) as told:
        write_all(started_writer, [capture(blocked, [ran], step=step) for step in (1, 2)])
    write_all(started_writer, [capture(tmp_path, [ran], step=3)])
    assert [str(each.message) for each in told] == [
        f"hloom cannot write the dump of step 1: [Errno 17] File exists: '{blocked}'"
    ]
    assert open_dump(tmp_path / "step-3").processes == (0,)


def test_warnings_as_errors_do_not_end_the_thread(
    tmp_path: Path, started_writer: Writer, ran: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        started_writer.submit(capture(blocked, [ran]))
        started_writer.submit(capture(tmp_path, [ran]))
        assert started_writer.flush(timeout_s=60)
    assert "hloom cannot write the dump of step 3: " in capsys.readouterr().err
    assert open_dump(tmp_path / "step-3").processes == (0,)


def test_nothing_is_left_of_the_executable_when_all_is_written(
    tmp_path: Path, started_writer: Writer, ran: Execution
) -> None:
    class Kept:
        pass

    held = Kept()
    gone = weakref.ref(held)
    given = capture(tmp_path, [dataclasses.replace(ran, executable=None)])
    object.__setattr__(given, "held", held)
    started_writer.submit(given)
    del given, held
    assert started_writer.flush(timeout_s=60)
    assert gone() is None


class BrokenExecutable:
    client = property(lambda self: self)
    platform_version = "broken"

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_an_executable_that_tells_nothing_is_missing_with_the_reason(
    tmp_path: Path, ran: Execution
) -> None:
    write_step(capture(tmp_path, [dataclasses.replace(ran, executable=BrokenExecutable())]))
    dump = open_dump(tmp_path)
    assert {each.what for each in dump.missing} >= {
        "optimised HLO",
        "memory figures",
        "live ranges",
    }
    assert "RuntimeError: no hlo_modules" in "\n".join(missing_texts(dump))
    assert len(dump.modules[0].states) == 4


def test_what_was_kept_and_is_gone_or_garbage_is_missing(
    tmp_path: Path, ran: Execution, live: LiveModule
) -> None:
    files = {
        **live.files,
        "00-input.mlir": b"ML\xefR and then garbage",
        "plan-05-remat.json": tmp_path / "gone.json",
    }
    broken = dataclasses.replace(ran, kept=dataclasses.replace(live, files=files))
    write_step(capture(tmp_path, [broken]))
    dump = open_dump(tmp_path)
    assert [each.what for each in dump.missing][:2] == ["input", "plan-05-remat.json"]
    assert "No such file or directory" in dump.missing[1].why
    [module] = dump.modules
    assert module.input_file is None
    assert len(module.states) == 3


@pytest.mark.parametrize(
    "error", [ValueError("no such dtype"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_arrays_that_cannot_be_written_are_left_out(
    tmp_path: Path, ran: Execution, error: Exception
) -> None:
    given: Any = BrokenArrays(error)
    with pytest.warns(hloom.HloomWarning) as told:
        submit_and_wait(tmp_path, dataclasses.replace(ran, arguments=given, results=given))
    [warning] = told
    reason = str(warning.message).removeprefix("hloom cannot write the arrays of step 3: ")
    assert str(error) in reason
    assert reason.endswith(". The rest is written")
    dump = open_dump(tmp_path)
    assert [each.what for each in dump.missing] == ["arguments", "results"]
    [module] = dump.modules
    assert module.array_folders("arguments") == module.array_folders("results") == ()
    assert len(module.states) == 4


def test_a_module_that_breaks_the_writer_is_missing_and_the_rest_is_written(
    tmp_path: Path, ran: Execution
) -> None:
    broken: Any = Execution("jit_f", None, None, missing=3)  # type: ignore[arg-type]
    with pytest.warns(hloom.HloomWarning, match="the whole of jit_f-0 in step 3: TypeError: "):
        submit_and_wait(tmp_path, broken, ran)
    dump = open_dump(tmp_path)
    assert [module.spec for module in dump.modules] == ["", "remat"]
    assert missing_texts(dump)[0].startswith("process-0: the rest of jit_f-0: TypeError: ")


def test_a_failure_of_one_process_leaves_the_others_alone(
    tmp_path: Path, ran: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr(atomic_dirs, "_run_ids", {os.getpid(): "bb"})
    mine = write_step(capture(tmp_path, [ran]))
    monkeypatch.setattr("jax.process_index", lambda: 1)
    atomic_dirs._occurrences.clear()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module_folder, "write_artifacts", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_step(capture(tmp_path, [ran]))
    assert sorted(each.name for each in mine.parent.iterdir()) == ["manifest.json", "process-0"]
    assert missing_texts(tmp_path)[-1].startswith("process 1: ")


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
    tmp_path: Path, ran: Execution, live: LiveModule, monkeypatch: pytest.MonkeyPatch, where: str
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
