"""What is kept of live modules is bounded, and deleted when nobody needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hloom.dumps.collect import store
from hloom.dumps.collect.store import LiveModule, LiveModules, ModuleFacts

pytestmark = pytest.mark.once


MIB = 2**20


class FakeExecutable:
    def __init__(self, fingerprint: bytes = b"1") -> None:
        self.fingerprint = fingerprint


FACTS = ModuleFacts("jit_step", "cpu")


def live_module() -> LiveModule:
    return LiveModule(FACTS, {})


def kept_of(modules: LiveModules, executables: list[FakeExecutable]) -> list[bool]:
    return [modules.find(each)[0] is not None for each in executables]


def test_the_oldest_go_first_over_the_number() -> None:
    modules = LiveModules(max_modules=2)
    executables = [FakeExecutable() for _ in range(4)]
    for executable in executables:
        modules.keep(executable, live_module(), 10)
    assert kept_of(modules, executables) == [False, False, True, True]
    assert modules.usage() == (2, 20)
    [missing] = modules.find(executables[0])[1]
    assert missing.why == (
        "hloom keeps 2 modules and 512 MiB of a process, and gave this one up for newer ones"
    )


def test_the_oldest_go_first_over_the_bytes() -> None:
    modules = LiveModules(max_bytes=25 * MIB)
    executables = [FakeExecutable() for _ in range(3)]
    for executable in executables:
        modules.keep(executable, live_module(), 10 * MIB)
    assert kept_of(modules, executables) == [False, True, True]
    modules.keep(huge := FakeExecutable(), live_module(), 26 * MIB)
    assert kept_of(modules, [*executables, huge]) == [False] * 4
    assert modules.usage() == (0, 0)


def test_another_executable_at_the_same_address_is_not_taken_for_it() -> None:
    modules = LiveModules()
    executable = FakeExecutable(b"1")
    modules.keep(executable, live_module(), 1)
    executable.fingerprint = b"2"
    found, [missing] = modules.find(executable)
    assert found is None
    assert missing.why.startswith("the module was compiled before dumps of steps")


def test_what_is_told_of_given_up_modules_is_bounded() -> None:
    modules = LiveModules(max_modules=5)
    executables = [FakeExecutable() for _ in range(100)]
    for executable in executables:
        modules.keep(executable, live_module(), 1)
    assert len(modules._entries) <= 10


def test_a_forked_process_deletes_nothing_of_its_parents(tmp_path: Path) -> None:
    folder = tmp_path / "parent's"
    folder.mkdir()
    store.delete(folder, os.getpid() + 1)
    assert folder.exists()
    store.delete(folder, os.getpid())
    assert not folder.exists()


def test_what_a_killed_process_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    script = (
        "from hloom.dumps.collect.store import process_folder\n"
        "import sys; print(process_folder(), flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def folder_of(process: subprocess.Popen[str]) -> Path:
        return Path(process.stdout.readline().strip())

    with start() as killed, start() as alive:
        left, in_use = folder_of(killed), folder_of(alive)
        killed.kill()
        killed.wait(timeout=60)
        assert left.exists()
        with start() as next_one:
            own = folder_of(next_one)
            assert sorted(tmp_path.iterdir()) == sorted([in_use, own])
            next_one.communicate("", timeout=60)
        alive.communicate("", timeout=60)
    assert list(tmp_path.iterdir()) == []
