"""What barriers on the CPU take of a process: memory, threads, files, and its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import RunPython
from support.devices.runtime_calls import (
    RANKS,
    barrier,
    new_token,
    on_every_rank,
    ranks,
    run_with_one_absent,
)

from hloom import runtime

XlaError = jax.errors.JaxRuntimeError


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    runtime.register(runtime.targets("cpu"), "cpu")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def barriers_in_a_loop(rounds: int) -> Callable[[jax.Array], jax.Array]:
    """A program that adds one behind each of so many barriers."""

    def program(x: jax.Array) -> jax.Array:
        def body(_: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            token, value = barrier(*state)
            return token, value + 1

        token, value = jax.lax.fori_loop(0, rounds, body, (new_token(), x))
        return value + token

    return on_every_rank(program)


def test_ten_thousand_barriers_leave_nothing_behind() -> None:
    compiled = barriers_in_a_loop(1_000)
    failing = run_with_one_absent(3, timeout_ms=20)

    def rounds(number: int) -> None:
        for _ in range(number):
            assert np.array_equal(compiled(ranks()), ranks() + 1_000)
            with pytest.raises(XlaError):
                jax.block_until_ready(failing(jnp.ones(RANKS)))

    def growth() -> int:
        memory = resident_bytes()
        rounds(10)
        return resident_bytes() - memory

    rounds(3)
    files, threads = open_files(), running_threads()
    # An arrival takes some hundred bytes: 80,000 that were kept would be many MiB, each time. What
    # the rest of the process takes meanwhile, it does not take each time.
    assert any(growth() < 4 * 2**20 for _ in range(3))
    assert open_files() == files
    assert running_threads() == threads


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def running_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_runs_of_several_threads_stay_apart() -> None:
    # One executable, and several runs of it at once.
    compiled = barriers_in_a_loop(20)

    def run_often(_: int) -> None:
        for _ in range(20):
            results = [compiled(ranks()) for _ in range(5)]
            assert all(np.array_equal(np.asarray(each), ranks() + 20) for each in results)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run_often, range(4)))


SCRIPT = """
import os, pathlib, sys
os.environ["XLA_FLAGS"] = "{flags}"
import jax, jax.numpy as jnp, numpy as np
from hloom import runtime
from support.devices.runtime_calls import *
runtime.register(runtime.targets("cpu"), "cpu")
n = len(jax.devices())
x = jnp.arange(n, dtype=jnp.float32)
"""


@pytest.mark.parametrize(
    "flags",
    [
        "--xla_force_host_platform_device_count=32",
        # Without a pool of XLA's, the handler falls back to waiting in its thread.
        "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false",
        "--xla_force_host_platform_device_count=1",
    ],
)
def test_other_numbers_of_devices_and_threads(flags: str, run_python: RunPython) -> None:
    script = (
        SCRIPT.format(flags=flags)
        + """
def program(x):
    def body(i, state):
        token, value = barrier(*state)
        return token, value + jax.lax.psum(value[0], "ranks") * 0 + 1
    token, value = jax.lax.fori_loop(0, 100, body, (new_token(), x))
    return value + token
assert np.array_equal(on_every_rank(program)(x), x + 100)
print("done")
"""
    )
    assert run_python(script).stdout == "done\n"


def test_a_program_from_the_compilation_cache_has_its_groups(
    run_python: RunPython, tmp_path: Path
) -> None:
    script = (
        SCRIPT.format(flags="--xla_force_host_platform_device_count=4")
        + """
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("cache_hits")))
value = on_every_rank(lambda x: barrier(new_token(), x)[1] + 1)(x)
print(np.asarray(value).tolist(), any(hits))
"""
    )
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    assert run_python(script, **environment).stdout == "[1.0, 2.0, 3.0, 4.0] False\n"
    assert run_python(script, **environment).stdout == "[1.0, 2.0, 3.0, 4.0] True\n"


def test_a_process_can_end_while_ranks_wait(run_python: RunPython) -> None:
    flags = "--xla_force_host_platform_device_count=8"
    script = (
        SCRIPT.format(flags=flags)
        + """
def program(x):
    token = new_token()
    token = jax.lax.cond(rank() == 3, lambda t: t, lambda t: barrier(t, timeout_ms=2_000)[0], token)
    return x + token
y = on_every_rank(program)(x)
print("going")
"""
    )
    start = time.monotonic()
    result = run_python(script, check=False)
    assert result.stdout == "going\n"
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - start < 60
