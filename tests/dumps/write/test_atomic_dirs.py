"""Who writes where: several runs, processes and threads in one folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import pytest
from support.dumps.samples import capture

import hloom
from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.dump import open_dump
from hloom.dumps.write import atomic_dirs
from hloom.dumps.write.atomic_dirs import claim_step, run_id
from hloom.dumps.write.writer import write_step

pytestmark = pytest.mark.once


STARTED_TEXT = "2026-11-21T12:00:00.000+00:00"


def test_a_second_run_has_folders_of_its_own(
    tmp_path: Path, ran: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_step(capture(tmp_path, [ran]))
    write_step(capture(tmp_path, [ran], step=4))
    first = (tmp_path / "step-3" / "manifest.json").read_bytes()
    monkeypatch.setattr(atomic_dirs, "_run_ids", {})
    again = [capture(tmp_path, [ran], step=step) for step in (3, 4)]
    with pytest.warns(hloom.HloomWarning, match="step-3 is there already, of another run") as told:
        assert [write_step(each).parent.name for each in again] == ["step-3-run-2", "step-4-run-2"]
    assert len(told) == 1
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [
        "step-3",
        "step-3-run-2",
        "step-4",
        "step-4-run-2",
    ]
    assert (tmp_path / "step-3" / "manifest.json").read_bytes() == first
    assert open_dump(tmp_path / "step-3-run-2").step == 3


def test_a_step_that_comes_twice_is_written_twice(tmp_path: Path, ran: Execution) -> None:
    write_step(capture(tmp_path, [ran]))
    with pytest.warns(hloom.HloomWarning, match="step-3 is there already, of this run: step 3 is"):
        write_step(capture(tmp_path, [ran]))
    assert open_dump(tmp_path / "step-3-run-2").modules[0].spec == "remat"


CLAIM = """
import os, sys
from pathlib import Path
import jax
jax.process_index = lambda *_: int(sys.argv[2])
jax.process_count = lambda *_: 2
from hloom.dumps.write import atomic_dirs
atomic_dirs._run_ids[os.getpid()] = "aa"
print("ready", flush=True)
sys.stdin.readline()
for step in range(100, 160):
    if step == 130:
        atomic_dirs._run_ids.clear()
        jax.process_count = lambda *_: 1
    claim = atomic_dirs.claim_step(Path(sys.argv[1]), step, "2026-11-21T12:00:00.000+00:00")
    (claim.staging / "manifest.json").write_text('{"process": %s}' % sys.argv[2])
    claim.publish()
"""


def claim_at_once(root: Path, processes: int) -> None:
    """Runs processes that claim 60 steps each, all started on them at the same time.

    The first 30 as one run, the others as a run of its own each.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CLAIM, str(root), str(process)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    for process in started:
        process.communicate(timeout=120)
        assert process.returncode == 0


def test_processes_of_one_run_share_a_step_and_other_runs_do_not(tmp_path: Path) -> None:
    claim_at_once(tmp_path, 2)
    for step in range(100, 130):
        [folder] = tmp_path.glob(f"step-{step}*")
        inside = sorted(child.name for child in folder.iterdir())
        assert inside == ["manifest.json", "process-0", "process-1"]
    for step in range(130, 160):
        folders = sorted(tmp_path.glob(f"step-{step}*"))
        assert [folder.name for folder in folders] == [f"step-{step}", f"step-{step}-run-2"]
        processes = {child.name for folder in folders for child in folder.glob("process-*")}
        assert processes == {"process-0", "process-1"}
        runs = {json.loads((each / "manifest.json").read_text())["run"] for each in folders}
        assert len(runs) == 2
    assert not list(tmp_path.glob(".*")), "what lost the race is gone"


class SharedStore:
    """A store where a key is given a value once, as that of jax.distributed."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def put(self, key: str, value: str) -> None:
        if key in self.values:
            raise RuntimeError("ALREADY_EXISTS")
        self.values[key] = value

    def get(self, key: str, timeout_s: float) -> str | None:
        return self.values.get(key)


def test_the_processes_of_a_run_have_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    store = SharedStore()
    ids = []
    for _ in range(2):
        monkeypatch.setattr(atomic_dirs, "_run_ids", {})
        ids.append(run_id(store))
    assert ids[0] == ids[1] == run_id(store)


def test_a_store_that_does_not_answer_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(SharedStore):
        def get(self, key: str, timeout_s: float) -> str | None:
            return None

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(atomic_dirs, "_run_ids", {})
    with pytest.warns(hloom.HloomWarning, match="cannot agree on one folder"):
        assert len(run_id(Silent())) == 16
    monkeypatch.undo()


def test_a_process_that_is_not_there_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    claim = claim_step(tmp_path, 7, STARTED_TEXT)
    (claim.staging / "manifest.json").write_text("{}")
    claim.publish()
    dump = open_dump(tmp_path)
    assert dump.processes == (0,)
    assert [each.what for each in dump.missing] == ["process 1", "process 2"]


def test_the_shares_of_other_processes_are_found(
    tmp_path: Path, ran: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Execution("jit_scanned_step", ran.executable, None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(atomic_dirs, "_run_ids", {os.getpid(): "aa"})
    for process, executions in enumerate([[ran], [other, ran]]):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        monkeypatch.setattr(atomic_dirs, "_occurrences", Counter())
        written = write_step(capture(tmp_path, executions))
        assert written.name == f"process-{process}"
        for folder in written.glob("jit_*"):
            (folder / "arguments").mkdir()
    dump = open_dump(tmp_path)
    assert dump.processes == (0, 1)
    [first, *_] = dump.modules
    step = tmp_path / "step-3"
    # The other process ran a module of that name before; it is the same text that counts.
    mine = step / "process-0" / "jit_scanned_step-0" / "arguments"
    theirs = step / "process-1" / "jit_scanned_step-1" / "arguments"
    assert first.array_folders("arguments") == (mine, theirs)
    assert dump.modules[2].array_folders("arguments") == (theirs, mine), "its own first"
    alone = open_dump(step / "process-0" / "jit_scanned_step-0").modules[0]
    assert alone.array_folders("arguments") == first.array_folders("arguments")


def test_a_forked_process_is_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = run_id()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert run_id() != mine
    monkeypatch.undo()
    assert run_id() == mine
