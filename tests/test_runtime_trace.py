"""HLOOM_TRACE: what each call did, as a Chrome trace, whatever becomes of the process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import RunPython

SCRIPT = """
import os, signal, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp
from hloom import runtime
from runtime_calls import *
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
    events: list[dict[str, Any]] = json.loads(text.removesuffix(",\n") + "]")
    return events


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
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent),
        "HLOOM_TRACE": str(file),
    }
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
        assert process.stdout is not None
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


def test_a_disk_that_fills_up_is_one_warning(run_python: RunPython) -> None:
    result = run_python(SCRIPT + "print('ran')\n", HLOOM_TRACE="/dev/full")
    assert result.stdout == "ran\n"
    assert result.stderr.count("No space left on device") == 1


def test_without_the_variable_nothing_is_written(run_python: RunPython, tmp_path: Path) -> None:
    result = run_python(f"import os; os.chdir({str(tmp_path)!r})\n" + SCRIPT)
    assert list(tmp_path.iterdir()) == []
    assert "trace" not in result.stderr
