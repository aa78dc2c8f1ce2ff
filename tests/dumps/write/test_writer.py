"""The writer in the background: nobody waits for it, and it outlives what fails."""

from __future__ import annotations

import dataclasses
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dumps.samples import capture

import hloom
from hloom.dumps.collect.tracer import Execution, StepCapture
from hloom.dumps.read.dump import open_dump
from hloom.dumps.write import writer
from hloom.dumps.write.writer import Writer

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
