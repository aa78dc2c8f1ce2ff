"""Two processes under jax.distributed dump a step: each its share, and together it reads back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dumps.worker import CHOSEN, SHARDINGS, first_state
from support.processes import run_members

from hloom.dumps.read.dump import DumpError, ModuleDump, open_dump
from hloom.dumps.write.array_files import ArrayShare, read_arrays

PROCESSES = (0, 1)
WORKER = "from support.dumps.worker import main; main()"

FINISHES_WITHIN_S = 120
"""Many times what it takes; as in test_processes.py."""

OVERHEAD_BYTES = 64 * 1024
"""What a share may have beside the values: arrays.json. Less than a quarter of the state's smallest
array."""


@dataclass(frozen=True)
class Run:
    """What the two processes wrote, and what each told at its end."""

    folder: Path
    told: tuple[dict[str, Any], ...]

    def module(self, name: str, process: int) -> ModuleDump:
        """The module of that name in the folder of that process."""
        dump = open_dump(self.folder / f"step-{CHOSEN}" / f"process-{process}")
        [module] = [each for each in dump.modules if each.name == name]
        return module


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("dump")
    members = run_members(WORKER, str(folder), devices=2, timeout_s=FINISHES_WITHIN_S)
    for member in members:
        assert member.returncode == 0, member.stderr
        assert "HloomWarning" not in member.stderr
    return Run(folder, tuple(json.loads(member.stdout.splitlines()[-1]) for member in members))


def expected(steps: int) -> dict[str, np.ndarray]:
    """The state after so many steps."""
    state = first_state()
    for _ in range(steps):
        columns = state["columns"] * np.float32(0.5)
        state = {name: -value for name, value in state.items()} | {"columns": columns}
    return state


def named(folders: Sequence[Path]) -> dict[str, np.ndarray]:
    arrays = read_arrays(folders)
    return {
        entry.name: arrays[entry.index] for entry in ArrayShare.open(folders[0]).entries.values()
    }


def test_both_processes_write_into_one_folder(ran: Run) -> None:
    assert [child.name for child in ran.folder.iterdir()] == [f"step-{CHOSEN}"]
    inside = sorted(child.name for child in (ran.folder / f"step-{CHOSEN}").iterdir())
    assert inside == ["manifest.json", "process-0", "process-1"]
    runs = {
        json.loads(file.read_text())["run"]
        for file in ran.folder.glob("step-*/**/manifest.json")
        if json.loads(file.read_text())["kind"] != "module"
    }
    assert len(runs) == 1


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(("kind", "steps"), [("arguments", CHOSEN), ("results", CHOSEN + 1)])
def test_the_state_reads_back_equal(ran: Run, kind: str, steps: int, process: int) -> None:
    folders = ran.module("jit_train_step", process).array_folders(kind)
    assert len(folders) == 2
    read = named(folders)
    for name, value in expected(steps).items():
        [mine] = [array for told, array in read.items() if f"'{name}'" in told]
        np.testing.assert_array_equal(mine, value)
        assert mine.dtype == value.dtype
    numbers = [array for array in read.values() if array.ndim == 0]
    assert [n.item() for n in numbers] == ([CHOSEN, 0.5] if kind == "arguments" else [])


@pytest.mark.parametrize("kind", ["arguments", "results"])
def test_no_value_is_in_two_shares(ran: Run, kind: str) -> None:
    folders = ran.module("jit_train_step", 0).array_folders(kind)
    written: dict[int, np.ndarray] = {}
    for folder in folders:
        for entry in ArrayShare.open(folder).entries.values():
            count = written.setdefault(entry.index, np.zeros(entry.shape, int))
            for shard in entry.shards:
                count[shard.slices] += 1
    assert len(written) == len(SHARDINGS) + (2 if kind == "arguments" else 0)
    for count in written.values():
        np.testing.assert_array_equal(count, 1)


@pytest.mark.parametrize("kind", ["arguments", "results"])
def test_no_byte_is_written_twice(ran: Run, kind: str) -> None:
    folders = ran.module("jit_train_step", 0).array_folders(kind)
    sizes = [sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) for folder in folders]
    state = first_state().values()
    # The second process has half of what is split between the processes, and nothing else.
    second_bytes = sum(value.nbytes for value in state) // len(SHARDINGS)
    assert sizes[1] < second_bytes + OVERHEAD_BYTES
    assert sum(sizes) < sum(value.nbytes for value in state) + OVERHEAD_BYTES


@pytest.mark.parametrize("process", PROCESSES)
def test_what_a_process_runs_alone_is_its_own(ran: Run, process: int) -> None:
    module = ran.module("jit_own_step", process)
    [result] = read_arrays(module.array_folders("results")).values()
    after = (10.0 + process) * 2 ** (CHOSEN + 1)
    np.testing.assert_array_equal(result, np.full(3, after, np.float32))
    assert ran.told[process]["mine"] == [2 * after] * 3


def test_without_the_other_process_the_share_is_told(ran: Run) -> None:
    module = ran.module("jit_train_step", 1)
    with pytest.raises(DumpError, match=r"is not whole: \d+ of 65536 values are here"):
        read_arrays([module.folder / "arguments"])
