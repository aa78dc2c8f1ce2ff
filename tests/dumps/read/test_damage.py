"""Dumps that ended half way or were damaged since: the reader says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from support import RunPython
from support.dumps.failures import missing_texts
from support.dumps.samples import capture

import hloom
from hloom.dumps.collect.store import LiveModule
from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.dump import DumpError, open_dump
from hloom.dumps.write import module as module_folder
from hloom.dumps.write.module import write_module
from hloom.dumps.write.writer import write_step

pytestmark = pytest.mark.once


CUT_OFF = """
import dataclasses, os, signal
from pathlib import Path
from support import RunPython
from support.dumps.samples import capture, execution
from hloom.dumps.write import writer

class Killed(type(Path())):
    def read_bytes(self):
        os.kill(os.getpid(), signal.SIGKILL)

ran = execution(arrays=False)
files = {**ran.kept.files, "zz-last.txt": Killed("x")}
half = dataclasses.replace(ran, kept=dataclasses.replace(ran.kept, files=files))
writer.submit(capture(Path(ROOT), [ran, half, ran]))
writer.flush()
"""


def test_a_step_that_was_cut_off_says_what_is_missing(
    tmp_path: Path, run_python: RunPython, ran: Execution
) -> None:
    result = run_python(CUT_OFF.replace("ROOT", repr(str(tmp_path))), check=False)
    assert result.returncode == -signal.SIGKILL
    dump = open_dump(tmp_path)
    assert dump.path == tmp_path / "step-3"
    assert [module.folder.name for module in dump.modules] == [
        "jit_scanned_step-0",
        "jit_scanned_step-1",
    ]
    whole, half = dump.modules
    assert len(whole.states) == 4
    assert whole.spec == "remat"
    assert len(half.states) == 4, "what was there before the end can be looked at"
    cut_off = "writing was cut off, or is not done yet"
    assert missing_texts(dump) == [
        f".process-0.partial: the rest: {cut_off}",
        f".process-0.partial: module jit_scanned_step-2: {cut_off}",
        ".process-0.partial/jit_scanned_step-1: manifest.json: there is none: "
        f"{cut_off}, or hloom was older",
    ]
    # The next run goes beside it, and leaves it as it is.
    with pytest.warns(hloom.HloomWarning, match="of another run"):
        write_step(capture(tmp_path, [ran]))
    assert missing_texts(tmp_path / "step-3") == missing_texts(dump)
    assert missing_texts(tmp_path / "step-3-run-2") == []


def test_a_compile_that_was_cut_off_is_no_module(
    tmp_path: Path, ran: Execution, live: LiveModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a killed process leaves: the folder that is not whole yet.
    monkeypatch.setattr(module_folder, "claim", lambda half, name: half)
    half = write_module(live, ran.executable, tmp_path)
    (half / "manifest.json").unlink()
    monkeypatch.undo()
    with pytest.raises(DumpError, match=f"holds no dump. Writing {half.name} was cut off."):
        open_dump(tmp_path)
    assert write_module(live, ran.executable, tmp_path) == tmp_path / "jit_scanned_step-0"
    assert open_dump(tmp_path).modules[0].spec == "remat"
    assert len(open_dump(half).modules[0].states) == 4, "by its name it can be opened"


@pytest.fixture
def module_dump(tmp_path: Path, ran: Execution) -> Path:
    """The folder of a module of a whole dump."""
    return write_step(capture(tmp_path, [ran])) / "jit_scanned_step-0"


def test_files_that_are_gone_or_short_are_missing(module_dump: Path) -> None:
    (module_dump / "xla" / "memory.json").unlink()
    state = module_dump / "05-after-remat.mlir"
    size = state.stat().st_size
    os.truncate(state, 100)
    assert missing_texts(module_dump.parent.parent) == [
        f"process-0/jit_scanned_step-0: 05-after-remat.mlir: the file has 100 bytes of {size}",
        "process-0/jit_scanned_step-0: xla/memory.json: the file is not there, but the manifest "
        "names it",
    ]
    [module] = open_dump(module_dump).modules
    assert module.memory is None
    assert [state.label for state in module.states][-1] == "after remat"


@pytest.mark.parametrize("text", ["", "{", "[1]", "\0"])
def test_manifests_that_are_no_json_are_missing(module_dump: Path, text: str) -> None:
    process, step = module_dump.parent, module_dump.parent.parent
    for folder in (module_dump, process, step):
        (folder / "manifest.json").write_text(text)
    dump = open_dump(step)
    assert (dump.kind, dump.step, dump.processes) == ("step", 3, (0,))
    assert dump.modules[0].name == "jit_scanned_step"
    assert missing_texts(dump) == [
        "manifest.json: it cannot be read as JSON",
        "process-0: manifest.json: it cannot be read as JSON",
        "process-0/jit_scanned_step-0: manifest.json: it cannot be read as JSON",
    ]
    assert open_dump(process).kind == "process"
    assert open_dump(module_dump).kind == "module"


@pytest.mark.parametrize(
    "manifest",
    [
        {"kind": "step", "processes": "two", "step": "x"},
        {"kind": "step", "missing": [3, {"what": None}], "processes": -1},
        {"kind": "nothing"},
    ],
)
def test_manifests_with_other_values_break_nothing(
    module_dump: Path, manifest: dict[str, object]
) -> None:
    step = module_dump.parent.parent
    (step / "manifest.json").write_text(json.dumps(manifest))
    dump = open_dump(step)
    assert (dump.step, len(dump.modules)) == (3, 1)


def test_a_module_s_manifest_with_other_values_breaks_nothing(module_dump: Path) -> None:
    values = {"files": {"a": 1, "b": {"bytes": "x"}}, "process": "p", "step": "s", "missing": {}}
    (module_dump / "manifest.json").write_text(json.dumps({"kind": "module", **values}))
    [module] = open_dump(module_dump).modules
    assert (module.process, module.step) == (0, None)
    assert len(module.states) == 4


@pytest.mark.parametrize(("number", "age"), [(1, "An older"), (2, "An older"), (4, "A newer")])
def test_another_format_is_an_error_with_the_remedy(
    module_dump: Path, number: int, age: str
) -> None:
    (module_dump / "manifest.json").write_text(f'{{"hloom_dump": {number}, "kind": "module"}}')
    text = rf"is of format {number}; this hloom reads format 3\. {age} hloom wrote it: read it with"
    with pytest.raises(DumpError, match=text):
        open_dump(module_dump)


def test_what_is_no_dump_is_an_error_with_the_remedy(tmp_path: Path, module_dump: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, text in [
        (tmp_path / "nowhere", "nowhere does not exist. A dump is a folder that"),
        (tmp_path / "empty", "empty holds no dump. A dump is a folder that"),
        (module_dump / "00-input.mlir", "is a file. Give the folder that it lies in."),
    ]:
        with pytest.raises(DumpError) as told:
            open_dump(path)
        assert text in str(told.value)


def test_a_folder_of_an_older_hloom_is_read(module_dump: Path, tmp_path: Path) -> None:
    old = tmp_path / "old" / "jit_step-0"
    shutil.copytree(module_dump, old)
    shutil.rmtree(old / "xla")
    (old / "manifest.json").unlink()
    (old / "attempts.json").write_text('[{"used": true}]')
    dump = open_dump(old.parent)
    [module] = dump.modules
    assert (dump.kind, module.name, module.spec) == ("module", "jit_step", "")
    assert module.attempts == [{"used": True}]
    assert len(module.states) == 4
    assert [each.what for each in dump.missing] == ["manifest.json"]


def test_a_foreign_folder_in_the_place_of_a_step_is_left_alone(
    tmp_path: Path, ran: Execution
) -> None:
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "mine.txt").write_text("mine")
    with pytest.warns(hloom.HloomWarning, match="of another run"):
        write_step(capture(tmp_path, [ran]))
    assert [each.name for each in (tmp_path / "step-3").iterdir()] == ["mine.txt"]
    assert open_dump(tmp_path / "step-3-run-2").modules
