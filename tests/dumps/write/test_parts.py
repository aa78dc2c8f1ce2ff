"""Parts of a dump that fail by themselves: they are missing, and the rest is written."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from support.dumps.failures import BrokenArrays, missing_texts, submit_and_wait
from support.dumps.samples import capture

import hloom
from hloom.dumps.collect.store import LiveModule
from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.dump import open_dump
from hloom.dumps.write import atomic_dirs
from hloom.dumps.write import module as module_folder
from hloom.dumps.write.writer import write_step

pytestmark = pytest.mark.once


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
