"""Many barriers with devices that come late at random: they hold, and none waits for ever.

Each site is three kernels (runtime/csrc/tests/stress.cc), of which the one in the middle says that
its peers meet at it. They count where a device is early. Nothing here is timed.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import often
from support.devices.stress_library import (
    BLOCKING_BARRIER,
    STEPS_OF_A_SITE,
    compile_stress,
    new_counters,
    start_worker,
)

pytestmark = pytest.mark.long

SITES = 24
RUNS = 200

FINISHES_WITHIN_S = 240
"""A hundred times what the few runs of the tests about standing still take, and for many runs a
limit all the same: nothing in these tests may wait for ever."""

STANDS_STILL_FOR_S = 10
"""As long as hundreds of runs take, after the compile."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stress(tmp_path_factory.mktemp("stress"), *BLOCKING_BARRIER)


def start(library: Path, devices: int, *options: str) -> subprocess.Popen[str]:
    return start_worker(library, new_counters(library), devices, *options)


def run(library: Path, devices: int, *options: str) -> dict[str, Any]:
    """What the worker tells at its end."""
    worker = start(library, devices, *options)
    try:
        output, errors = worker.communicate(timeout=FINISHES_WITHIN_S)
    finally:
        worker.kill()
    assert worker.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def assert_all_is_well(happened: dict[str, Any], devices: int, runs: int) -> None:
    calls = runs * SITES * STEPS_OF_A_SITE * devices
    expected = {"finished": runs, "wrong": 0, "calls": calls, "violations": 0}
    assert {key: happened[key] for key in expected} == expected


@pytest.mark.parametrize("between", ["nothing", "collectives"])
@pytest.mark.parametrize(
    ("devices", "elements"), [(8, 16384), pytest.param(32, 2048, marks=pytest.mark.once)]
)
def test_every_run_finishes_and_nobody_is_early(
    library: Path, devices: int, elements: int, between: str
) -> None:
    # Where cores are few, most of the time of many devices is that of switching threads.
    runs = often(50 if devices == 8 else 25, RUNS)
    options = ["--between", between, "--elements", str(elements), "--runs", str(runs)]
    assert_all_is_well(run(library, devices, *options), devices, runs)


def test_collectives_of_the_partitioner_do_no_harm(library: Path) -> None:
    options = ["--between", "partitioned", "--runs", "50"]
    assert_all_is_well(run(library, 8, *options), 8, 50)


def test_without_the_pass_devices_are_early(library: Path) -> None:
    happened = run(library, 8, "--spec", "off", "--runs", "5")
    assert happened["finished"] == 5
    assert happened["violations"] > 0


@pytest.mark.parametrize("between", ["nothing", "collectives"])
def test_with_the_order_barriers_may_even_block(library: Path, between: str) -> None:
    options = ["--blocking", "--between", between, "--runs", "20"]
    assert_all_is_well(run(library, 8, *options), 8, 20)


@pytest.mark.parametrize("between", ["nothing", "collectives"])
def test_without_the_order_blocking_barriers_stand_still(library: Path, between: str) -> None:
    options = ["--blocking", "--between", between, "--spec", "barriers,cut-tokens", "--runs", "20"]
    worker = start(library, 8, *options)
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "compiled\n", worker.communicate()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(STANDS_STILL_FOR_S)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.communicate()


def test_a_device_that_does_not_arrive_is_named_and_the_next_run_works(library: Path) -> None:
    options = ["--spec", "barriers{timeout=500ms}", "--runs", "6", "--late-run", "2"]
    happened = run(library, 8, *options)
    assert "hloom.barrier at entry of @test.stress_step in @main" in happened["error"]
    assert "rank 5 did not come within 0.5 s" in happened["error"]
    assert (happened["finished"], happened["wrong"]) == (5, 0)
