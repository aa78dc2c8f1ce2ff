"""hloom.barrier.v1 on the CPU, called by hand: who waits for whom, and what happens if in vain."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import RunPython
from support.devices.runtime_calls import (
    BARRIER,
    BLOCKING_BARRIER,
    barrier,
    barrier_attributes,
    counted,
    new_token,
    observe,
    on_every_rank,
    rank,
    register_test_handlers,
)

from hloom import runtime

RANKS = 8

XlaError = jax.errors.JaxRuntimeError


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    runtime.register(runtime.targets("cpu"), "cpu")
    return register_test_handlers(tmp_path_factory.mktemp("handlers"))


@pytest.fixture(autouse=True)
def _count_is_zero(handlers: ctypes.CDLL) -> None:
    handlers.reset_count()


def ranks() -> jax.Array:
    return jnp.arange(RANKS, dtype=jnp.float32)


def unlike(round_number: jax.Array | int) -> jax.Array:
    """Microseconds up to 1000 that differ from rank to rank and round to round."""
    return (rank() * jnp.uint32(389) + jnp.uint32(round_number) * jnp.uint32(571)) % 1000


def run_with_one_absent(missing: int, **attributes: object) -> Callable[[jax.Array], jax.Array]:
    """A program in which one rank goes past the barrier where `flag` is not 0."""

    def program(flag: jax.Array) -> jax.Array:
        token = new_token()
        skips = (rank() == missing) & (flag[0] != 0)
        token = jax.lax.cond(skips, lambda t: t, lambda t: barrier(t, **attributes)[0], token)
        return (flag + token.astype(flag.dtype)).reshape(flag.shape)

    compiled: Callable[[jax.Array], jax.Array] = on_every_rank(program)
    return compiled


@pytest.mark.parametrize("target", [BARRIER, BLOCKING_BARRIER])
def test_nobody_leaves_before_all_have_come(target: str) -> None:
    rounds = 40

    def program(_: jax.Array) -> jax.Array:
        def body(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            token, seen = state
            token = observe("count", observe("sleep", token, unlike(i)))
            [token] = barrier(token, channel=1, target=target)
            token, count = counted(token)
            # The second one: nobody counts on before all have looked.
            [token] = barrier(token, channel=2, target=target)
            return token, seen.at[i].set(count)

        start = new_token(), jnp.zeros(rounds, jnp.uint32)
        return jax.lax.fori_loop(0, rounds, body, start)[1][None]

    seen = np.asarray(on_every_rank(program)(ranks()))
    assert (seen == RANKS * (1 + np.arange(rounds))).all()


def test_each_group_waits_for_itself_alone() -> None:
    groups = [[0, 1, 2], [5, 3, -1], [4, 6, 7]]

    def program(_: jax.Array) -> jax.Array:
        # Rank 5 comes seconds late, and 3 alone waits for it.
        late = jnp.where(rank() == 5, jnp.uint32(2_000_000), jnp.uint32(0))
        token = observe("sleep", new_token(), late)
        token = jax.lax.cond(rank() == 5, lambda t: observe("count", t), lambda t: t, token)
        [token] = barrier(token, groups=groups)
        return counted(token)[1][None]

    seen = np.asarray(on_every_rank(program)(ranks()))
    assert seen.tolist() == [0, 0, 0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "bool", "int4", "complex64", "bfloat16"])
def test_values_pass_through(dtype: str) -> None:
    values = jnp.arange(RANKS * 35).reshape(RANKS * 5, 7).astype(dtype)

    def program(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Used again afterwards: XLA must give the barrier a copy of its own.
        _, y = barrier(new_token(), x)
        return y, x

    through, kept = on_every_rank(program)(values)
    assert np.array_equal(np.asarray(through), np.asarray(values))
    assert np.array_equal(np.asarray(kept), np.asarray(values))


def test_operands_without_result_are_only_kept() -> None:
    def program(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((), jnp.uint32)
        call = jax.ffi.ffi_call(BARRIER, [shape])
        [token] = call(new_token(), x, **barrier_attributes())
        return x + token

    assert np.array_equal(on_every_rank(program)(ranks()), ranks())


def test_barriers_stand_in_conditionals_and_loops() -> None:
    def program(x: jax.Array) -> jax.Array:
        def meet(token: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
            token, value = barrier(token, value, channel=1)
            return token, jax.lax.psum(value[0], "ranks")[None]

        def body(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return jax.lax.cond(i % 3 == 0, lambda s: s, lambda s: meet(*s), state)

        token, value = jax.lax.fori_loop(0, 7, body, (new_token(), x))
        return value + token

    assert np.array_equal(on_every_rank(program)(ranks()), np.full(RANKS, 28.0 * RANKS**3))


def test_without_any_order_nothing_starves() -> None:
    """Barriers do not hold the threads that other barriers and all-reduces need."""
    run_often(unordered_program(BARRIER, timeout_ms=60_000))


def test_blocking_barriers_without_order_starve() -> None:
    """The program above is one that needs handlers which do not block."""
    program = unordered_program(BLOCKING_BARRIER, timeout_ms=1_000)
    with pytest.raises(XlaError, match="did not come within"):
        run_often(program)


def run_often(program: Callable[[jax.Array], jax.Array]) -> None:
    for _ in range(20):
        result = np.asarray(program(large()))  # Raises what the run raised.
        assert (result == sum(range(24)) + 24).all()


def large() -> jax.Array:
    """So large a value that XLA:CPU runs what is independent at the same time."""
    return jnp.ones((RANKS, 64, 1024))


def unordered_program(target: str, timeout_ms: int) -> Callable[[jax.Array], jax.Array]:
    """24 barriers with nothing between them but unlike delays."""
    sites = 24

    def program(x: jax.Array) -> jax.Array:
        values = []
        for site in range(sites):
            token = observe("sleep", new_token(), unlike(site) * 3)
            token, value = barrier(
                token, x * site, channel=site + 1, target=target, timeout_ms=timeout_ms
            )
            values.append(value + (jax.lax.psum(value[0, 0, 0], "ranks") * 0 + 1))
        return sum(values[1:], values[0])

    compiled: Callable[[jax.Array], jax.Array] = on_every_rank(program)
    return compiled


def test_a_rank_that_never_comes_is_named_and_the_next_run_works() -> None:
    program = run_with_one_absent(3, timeout_ms=1_000, site="entry of @f, model.py:7", channel=9)
    here = jnp.zeros(RANKS)
    assert np.array_equal(program(here), here)
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(XlaError) as caught:
            jax.block_until_ready(program(here + 1))
        assert 1 <= time.monotonic() - start < 10
        expected = (
            r"DEADLINE_EXCEEDED: hloom\.barrier at entry of @f, model\.py:7: "
            r"rank 3 did not come within \d\.\d s; ranks 0-2, 4-7 waited \(channel 9, run -?\d+\)"
        )
        assert re.search(expected, str(caught.value))
        assert np.array_equal(program(here), here)


def test_one_who_comes_too_late_fails_at_once() -> None:
    def program(flag: jax.Array) -> jax.Array:
        late = jnp.where((rank() == 6) & (flag[0] != 0), jnp.uint32(3_000_000), jnp.uint32(0))
        token = observe("sleep", new_token(), late)
        [token] = barrier(token, channel=1, timeout_ms=1_000)
        [token] = barrier(token, channel=2, timeout_ms=100_000)
        return flag + token

    compiled = on_every_rank(program)
    here = jnp.zeros(RANKS)
    start = time.monotonic()
    with pytest.raises(XlaError, match="rank 6 did not come within 1.0 s"):
        jax.block_until_ready(compiled(here + 1))
    # The latecomer has ended too: it would keep the next run waiting.
    assert np.array_equal(compiled(here), here)
    assert time.monotonic() - start < 20


def test_a_rank_that_fails_before_does_not_hang_the_others() -> None:
    def program(flag: jax.Array) -> jax.Array:
        fails = (rank() == 2) & (flag[0] != 0)
        token = jax.lax.cond(fails, lambda t: observe("fail", t), lambda t: t, new_token())
        [token] = barrier(token, timeout_ms=1_000)
        return flag + token

    compiled = on_every_rank(program)
    here = jnp.zeros(RANKS)
    with pytest.raises(XlaError, match="fails on purpose|rank 2 did not come"):
        jax.block_until_ready(compiled(here + 1))
    assert np.array_equal(compiled(here), here)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            {"devices": np.arange(4, dtype=np.int64), "groups": [[0, 1, 2, 3]]},
            "device [4-7] has no partition in devices",
        ),
        ({"groups": [[0, 1, 2, 3, 4, 5]]}, "partition [67] is in no replica group"),
        ({"groups": [[*range(8), 8]]}, "partition 8 of a replica group is none of 8 partitions"),
        ({"group_size": np.int64(5)}, "replica_groups has 8 numbers, not a multiple of group_size"),
        ({"timeout_ms": 0}, "timeout_ms is 0, not positive"),
        ({"site": np.int64(3)}, "Wrong scalar data type|Wrong attribute type"),
    ],
)
def test_wrong_attributes_are_errors(attributes: dict[str, object], expected: str) -> None:
    program = on_every_rank(
        lambda x: x + barrier(new_token(), **attributes)[0]  # type: ignore[arg-type]
    )
    with pytest.raises(XlaError) as caught:
        jax.block_until_ready(program(ranks()))
    # Those who have the wrong ones say so, and whoever waits for them repeats it at once.
    assert re.search(rf"hloom\.barrier.*: .*({expected})", str(caught.value))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_ten_thousand_barriers_leave_nothing_behind() -> None:
    def program(x: jax.Array) -> jax.Array:
        def body(_: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            token, value = barrier(*state)
            return token, value + 1

        token, value = jax.lax.fori_loop(0, 1_000, body, (new_token(), x))
        return value + token

    compiled = on_every_rank(program)
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
    def program(x: jax.Array) -> jax.Array:
        def body(_: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            token, value = barrier(*state)
            return token, value + 1

        token, value = jax.lax.fori_loop(0, 20, body, (new_token(), x))
        return value + token

    # One executable, and several runs of it at once.
    compiled = on_every_rank(program)

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
