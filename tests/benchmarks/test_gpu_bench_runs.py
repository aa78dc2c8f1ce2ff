"""`python -m benchmarks.gpu --dry-run`: every part without a GPU, a kill in the middle, and on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest
from support.devices.cuda_on_cpu import compile_driver

from benchmarks.gpu import machine
from benchmarks.gpu.items import ROOT, Item
from benchmarks.gpu.running import Children

pytestmark = pytest.mark.long

COMMAND = (sys.executable, "-m", "benchmarks.gpu", "--dry-run")
ENDED_WELL = {"ok", "skipped"}

OF_PART = {
    1: ("tests", "checks of the kernels", "test/tests/", "sanitizer/"),
    2: ("build", "compile for H100", "step/perceptron/capture", "time/two_level_scan"),
    5: ("compile attention for H200", "attention/way/", "attention/a bias", "bits/", "time/"),
    4: ("jax/exchange_is_right", "jax/two_runs", "jax/host_error", "jax/exchange_latency"),
}


def options(folder: Path, part: int) -> list[str]:
    return ["--out", str(folder / "out"), "--work", str(folder / "work"), "--part", str(part)]


def run(folder: Path, part: int, *more: str, check: int = 0) -> str:
    result = subprocess.run(
        [*COMMAND, *options(folder, part), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert result.returncode == check, result.stdout + result.stderr
    return result.stdout


def written(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / "out" / "gpu_dry_run.json").read_text())
    return report[jax.__version__]


def checked(tmp_path: Path, part: int) -> dict[str, Any]:
    """Runs a part, of which all ends well, and gives what it wrote."""
    printed = run(tmp_path, part)
    entry = written(tmp_path)
    bad = {name: e for name, e in entry["items"].items() if e["status"] not in ENDED_WELL}
    assert bad == {}, printed
    for start in OF_PART[part]:
        assert any(name.startswith(start) for name in entry["items"]), start
    assert entry["parts"][str(part)]["complete"] is True
    facts = entry["machine"]
    assert (facts["device"], facts["platform"]) == ("dry run", "cpu")
    assert facts["native_library"]["error"] is None
    text = (tmp_path / "out" / "gpu_dry_run.md").read_text()
    assert all(name.split("/")[-1] in text for name in entry["items"] if "step/" not in name)
    return entry


@pytest.mark.once
def test_the_steps_run_without_a_gpu(tmp_path: Path) -> None:
    entry = checked(tmp_path, 2)
    steps = {name: e["result"] for name, e in entry["items"].items() if "step/" in name}
    off, floor, between = (
        steps[f"step/two_level_scan/{label}"]["step_bytes"]
        for label in ("off", "fit, the floor", "fit, as nothing_saveable")
    )
    assert floor <= between < off


# Part 3 runs in test_a_part_that_is_killed_goes_on.
@pytest.mark.once
@pytest.mark.parametrize("part", [1, 4, 5])
def test_other_parts_run_without_a_gpu(tmp_path: Path, part: int) -> None:
    checked(tmp_path, part)


def test_a_part_that_is_killed_goes_on(tmp_path: Path) -> None:
    command = [*COMMAND, *options(tmp_path, 3), "--jobs", "1"]
    file = tmp_path / "out" / "gpu_dry_run.json"
    killed = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        for _ in range(1000):
            if file.exists() and written(tmp_path)["items"]:
                break
            time.sleep(0.2)
        os.killpg(killed.pid, signal.SIGKILL)
    finally:
        killed.kill()
        killed.wait()
    before = written(tmp_path)
    assert before["parts"]["3"]["complete"] is False
    assert list(before["items"]) == ["bits/perceptron"]
    assert "bits/lstm" in run(tmp_path, 3)
    after = written(tmp_path)
    assert after["items"]["bits/perceptron"] == before["items"]["bits/perceptron"]
    assert after["items"]["bits/lstm"]["status"] == "ok"
    assert after["parts"]["3"]["complete"] is True
    # All is done: only what is asked for again is run again.
    assert "bits/" not in run(tmp_path, 3).replace("forgotten", "")


def test_a_part_without_time_is_not_complete(tmp_path: Path) -> None:
    printed = run(tmp_path, 3, "--minutes", "0.1", check=3)
    assert "not complete: the same command goes on" in printed
    assert written(tmp_path)["parts"]["3"]["left"] == ["bits/perceptron", "bits/lstm"]


@pytest.mark.once
def test_without_a_gpu_the_remedy_is_told(tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    result = subprocess.run(
        [*COMMAND[:-1], *options(tmp_path, 3)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert result.returncode == 1
    *_, last = result.stderr.splitlines()
    assert last.startswith("benchmarks.gpu: JAX does not start on a CUDA GPU here: ")
    assert last.endswith("Without a GPU there is --dry-run")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver whose devices run the kernels on the CPU."""
    return compile_driver(tmp_path_factory.mktemp("cuda_driver"))


STREAMS = {
    "barrier_latency": "tiny=True",
    "exchange_rate": "tiny=True",
    "two_runs": "tiny=True",
    "empty_slice": "tiny=True",
    "missing_rank": "wait_s=0.5",
}


@pytest.mark.h100
@pytest.mark.once
@pytest.mark.parametrize("name", STREAMS)
def test_ranks_as_streams_on_the_fake_driver(fake_driver: Path, tmp_path: Path, name: str) -> None:
    called = f"streams.{name}(lambda _: None, {STREAMS[name]})"
    # Kernels that wait for a missing rank must not keep the process.
    script = f"""
import json, os
from benchmarks.gpu.parts import streams
print(json.dumps({called}), flush=True)
os._exit(0)
"""
    environment = machine.environment(tmp_path, dry_run=True, given=os.environ)
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"LD_LIBRARY_PATH": str(fake_driver)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    if name == "barrier_latency":
        assert set(found) == {"2", "4"}
    if name == "empty_slice":
        assert found["empty_slices"] > 0


@pytest.mark.h100
def test_each_kind_of_configuration_compiles_for_an_h100(tmp_path: Path) -> None:
    environment = machine.environment(tmp_path, dry_run=True, given=os.environ)
    child = Children(Path(sys.executable), tmp_path, environment)
    entry = child.run(Item("compile", "benchmarks.gpu.parts.steps:compile_for_h100"), 540)
    assert entry["status"] == "ok", entry
    found = entry["result"]
    assert found["capture"]["captured"]["coverage"]["graphs"] >= 1
    assert found["fit, the floor"]["step_bytes"] < found["off"]["step_bytes"]
    assert found["offload_dot_with_no_batch_dims"]["temp_bytes"] < found["off"]["temp_bytes"]
