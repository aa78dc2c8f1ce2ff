"""HLOOM_TRACE: what each call did, as a Chrome trace, whatever becomes of the process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import RunPython
from support.devices.native_code import CSRC, NATIVE, compile_native

SCRIPT = """
import os, signal, sys
from support import xla_flags
os.environ["XLA_FLAGS"] = xla_flags(4)
import jax, jax.numpy as jnp
from hloom import runtime
from support.devices.runtime_calls import *
runtime.register(runtime.targets("cpu"), "cpu")
def program(flag):
    token = new_token()
    [token] = barrier(token, channel=7, site='entry of "f"', timeout_ms=1_000)
    skips = (rank() == 3) & (flag[0] != 0)
    leave = lambda t: barrier(t, channel=8, site="exit\\n", timeout_ms=1_000)[0]
    return flag + jax.lax.cond(skips, lambda t: t, leave, token)
run = on_every_rank(program)
for _ in range(3):
    run(jnp.zeros(4)).block_until_ready()
"""


def events_of(file: Path) -> list[dict[str, Any]]:
    """The array may stay open, as the format allows: every event ends with a comma."""
    text = file.read_text(encoding="utf-8")
    assert text.startswith("[\n")
    assert text.endswith(",\n")
    return json.loads(text.removesuffix(",\n") + "]")


def test_every_call_is_recorded(run_python: RunPython, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    run_python(SCRIPT, HLOOM_TRACE=str(file))
    events = events_of(file)
    assert len(events) == 3 * 2 * 4
    runs = defaultdict(set)
    for event in events:
        arguments = event["args"]
        assert (event["name"], event["cat"], event["ph"]) == ("hloom.barrier", "hloom", "X")
        assert arguments["site"] == {7: 'entry of "f"', 8: "exit\n"}[arguments["channel"]]
        assert event["tid"] == arguments["rank"]
        assert event["ts"] > 0
        assert 0 <= arguments["wait_us"] + arguments["execute_us"] <= event["dur"] + 0.01
        assert "error" not in arguments
        runs[arguments["run"]].add((arguments["channel"], arguments["rank"]))
    assert [len(calls) for calls in runs.values()] == [8, 8, 8]
    assert len({event["pid"] for event in events}) == 1


def test_a_failed_call_says_why(run_python: RunPython, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    script = SCRIPT + "run(jnp.ones(4)).block_until_ready()\n"
    assert run_python(script, check=False, HLOOM_TRACE=str(file)).returncode == 1
    failed = [event for event in events_of(file) if "error" in event["args"]]
    assert sorted(event["args"]["rank"] for event in failed) == [0, 1, 2]
    for event in failed:
        assert "rank 3 did not come within" in event["args"]["error"]
        assert event["args"]["wait_us"] >= 1_000_000 > event["args"]["execute_us"]


def test_the_file_opens_after_a_kill(run_python: RunPython, tmp_path: Path) -> None:
    file = tmp_path / "trace-%p.json"
    script = SCRIPT + "os.kill(os.getpid(), signal.SIGKILL)\n"
    assert run_python(script, check=False, HLOOM_TRACE=str(file)).returncode == -signal.SIGKILL
    [written] = tmp_path.iterdir()
    assert re.fullmatch(r"trace-\d+\.json", written.name)
    assert len(events_of(written)) == 24


def test_two_processes_write_two_files(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    script = SCRIPT + "print('ran', flush=True)\nsys.stdin.read()\n"
    environment = os.environ | {"HLOOM_TRACE": str(file)}
    processes = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "ran\n"
    for process in processes:
        process.communicate(timeout=60)
    [second] = [path for path in tmp_path.iterdir() if path != file]
    assert second.name == f"trace.json.{processes[1].pid}"
    assert {event["pid"] for event in events_of(file)} == {processes[0].pid}
    assert {event["pid"] for event in events_of(second)} == {processes[1].pid}


@pytest.mark.parametrize(
    ("file", "reason"),
    [("missing/trace.json", "No such file or directory"), (".", "Is a directory")],
)
def test_a_bad_file_is_one_warning(
    run_python: RunPython, tmp_path: Path, file: str, reason: str
) -> None:
    result = run_python(SCRIPT + "print('ran')\n", HLOOM_TRACE=str(tmp_path / file))
    assert result.stdout == "ran\n"
    assert result.stderr.count(f"HLOOM_TRACE={tmp_path / file}: {reason}") == 1


def test_a_disk_that_fills_up_is_one_warning(run_python: RunPython, tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
    file = tmp_path / "trace.json"
    result = run_python(full + SCRIPT + "print('ran')\n", HLOOM_TRACE=str(file))
    assert result.stdout == "ran\n"
    assert result.stderr.count("hloom: the trace ends here: File too large") == 1
    assert file.stat().st_size == 500


def a_link(file: Path) -> None:
    file.with_name("other.json").write_text("of another program")
    file.symlink_to("other.json")


def a_link_to_nothing(file: Path) -> None:
    file.symlink_to("other.json")


def a_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(file))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_link, "it is a symbolic link"),
        (a_link_to_nothing, "it is a symbolic link"),
        (os.mkfifo, "it is not a regular file"),
        (a_socket, "it is not a regular file"),
        (None, "it is not a regular file"),
    ],
)
def test_a_file_of_another_kind_is_one_warning(
    run_python: RunPython, tmp_path: Path, make: Callable[[Path], None] | None, reason: str
) -> None:
    file = tmp_path / "trace.json"
    if make is None:
        file = Path("/dev/full")
    else:
        make(file)
    before = {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    result = run_python(SCRIPT + "print('ran')\n", HLOOM_TRACE=str(file))
    assert result.stdout == "ran\n"
    assert result.stderr.count(f"HLOOM_TRACE={file}: {reason}; nothing is recorded") == 1
    assert before == {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()}


def test_a_fifo_that_is_read_is_not_written(run_python: RunPython, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    os.mkfifo(file)
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        result = run_python(SCRIPT, HLOOM_TRACE=str(file))
        assert result.stderr.count(f"HLOOM_TRACE={file}: it is not a regular file") == 1
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


@pytest.mark.once
def test_a_call_that_cannot_be_told_is_left_out(tmp_path: Path) -> None:
    sources = [NATIVE / "trace_test.cc", CSRC / "trace.cc"]
    program = compile_native(tmp_path / "trace_test", sources, "-O1")
    file = tmp_path / "trace.json"
    result = subprocess.run([program, file], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "alive\n")
    assert result.stderr == "hloom: a call is missing in the trace: std::bad_alloc\n"
    assert len(events_of(file)) == 1


def test_without_the_variable_nothing_is_written(run_python: RunPython, tmp_path: Path) -> None:
    result = run_python(f"import os; os.chdir({str(tmp_path)!r})\n" + SCRIPT)
    assert list(tmp_path.iterdir()) == []
    assert "trace" not in result.stderr
