"""Barriers between the processes of one machine, through jax.distributed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import often
from support.devices.stopping import stopped_for
from support.devices.stress_library import (
    STEPS_OF_A_SITE,
    compile_stress,
    new_counters,
    start_worker,
)
from support.processes import free_port

pytestmark = pytest.mark.long

SITES = 8

FINISHES_WITHIN_S = 120
"""Many times what a start takes. The coordination service notices by itself that a process is
gone after 100 s, and then ends the others: what comes after this limit is not hloom's."""


LATE = ["--late-run", "3", "--late-device", "0", "--late-ms", "20000"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stress(tmp_path_factory.mktemp("processes"))


def run(
    library: Path,
    processes: int,
    devices: int,
    *options: str,
    dies: int | None = None,
    late: int | None = None,
    stops: int | None = None,
    more_flags: str = "",
) -> list[dict[str, Any] | None]:
    """What each process tells at its end; None of one that was killed."""
    port, shared = free_port(), new_counters(library)
    options = (*options, "--processes", str(processes), "--port", str(port), "--sites", str(SITES))
    workers: list[subprocess.Popen[str]] = []
    try:
        for process in range(processes):
            mine = [*options, "--process", str(process)]
            mine += ["--dies-at", "3"] if process == dies else []
            mine += LATE if process == late else []
            mine += ["--stops-at", "3"] if process == stops else []
            counters = new_counters(library) if "--alone" in options else shared
            worker = start_worker(library, counters, devices, *mine, more_flags=more_flags)
            workers.append(worker)
        if stops is not None:
            stopped_for(10, workers[stops].pid)
        # The first one serves the others; it ends at the end of its input.
        told = [worker.communicate(timeout=FINISHES_WITHIN_S) for worker in workers[1:]]
        told.insert(0, workers[0].communicate(timeout=FINISHES_WITHIN_S))
    finally:
        for worker in workers:
            worker.kill()
    for number, (worker, (_, errors)) in enumerate(zip(workers, told, strict=True)):
        assert worker.returncode == (-9 if number == dies else 0), errors
    return [
        None if number == dies else json.loads(output.splitlines()[-1])
        for number, (output, _) in enumerate(told)
    ]


@pytest.mark.parametrize(
    ("processes", "devices"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.once)]
)
def test_barriers_hold(library: Path, processes: int, devices: int) -> None:
    runs = 10
    happened = run(library, processes, devices, "--runs", str(runs))
    assert [(each["finished"], each["wrong"]) for each in happened if each] == [
        (runs, 0)
    ] * processes
    # The counters are everyone's; who ends last has seen all.
    calls = runs * SITES * STEPS_OF_A_SITE * processes * devices
    assert max(each["calls"] for each in happened if each) == calls
    assert {each["violations"] for each in happened if each} == {0}


@pytest.mark.once
def test_each_process_can_have_barriers_of_its_own(library: Path) -> None:
    happened = run(library, 2, 2, "--runs", "10", "--alone")
    calls = 10 * SITES * STEPS_OF_A_SITE * 2
    assert [each and (each["finished"], each["calls"]) for each in happened] == [(10, calls)] * 2
    assert [each and each["violations"] for each in happened] == [0, 0]


def test_barriers_hold_between_collectives(library: Path) -> None:
    happened = run(library, 2, 2, "--runs", "10", "--between", "collectives")
    assert [each and each["finished"] for each in happened] == [10, 10]
    assert [each and each["violations"] for each in happened] == [0, 0]


@pytest.mark.once
def test_without_the_pass_processes_are_early(library: Path) -> None:
    happened = run(library, 2, 2, "--runs", "10", "--spec", "off")
    assert max(each["violations"] for each in happened if each) > 0


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 2)][: often(1, 2)])
def test_a_process_that_is_killed_is_an_error_in_the_others(
    library: Path, processes: int, devices: int
) -> None:
    happened = run(library, processes, devices, "--runs", "10", dies=1)
    for each in (each for each in happened if each):
        assert each["finished"] == 3
        assert re.search("Gloo.*(closed|reset) by peer", each["error"])


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)][: often(1, 2)])
def test_a_process_that_is_stopped_is_waited_for(
    library: Path, processes: int, devices: int
) -> None:
    happened = run(library, processes, devices, "--runs", "10", stops=1)
    assert [each and (each["finished"], each["wrong"]) for each in happened] == [
        (10, 0)
    ] * processes
    assert {each["violations"] for each in happened if each} == {0}


def test_a_process_that_does_not_come_is_an_error_where_xla_has_a_limit(library: Path) -> None:
    limit = "--xla_cpu_collective_timeout_seconds=10"
    first, _ = run(library, 2, 2, "--runs", "10", late=1, more_flags=limit)
    assert first["finished"] == 3
    assert re.search("Gloo.*Timed out waiting", first["error"])
