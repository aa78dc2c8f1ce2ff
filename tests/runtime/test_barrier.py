"""hloom.barrier.v1 on the CPU, called by hand: who waits for whom, and what happens if in vain."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices.runtime_calls import (
    BARRIER,
    BLOCKING_BARRIER,
    RANKS,
    barrier,
    barrier_attributes,
    counted,
    new_token,
    observe,
    on_every_rank,
    rank,
    ranks,
    register_test_handlers,
    run_with_one_absent,
)

from hloom import runtime

XlaError = jax.errors.JaxRuntimeError


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    runtime.register(runtime.targets("cpu"), "cpu")
    return register_test_handlers(tmp_path_factory.mktemp("handlers"))


@pytest.fixture(autouse=True)
def _count_is_zero(handlers: ctypes.CDLL) -> None:
    handlers.reset_count()


def unlike(round_number: jax.Array | int) -> jax.Array:
    """Microseconds up to 1000 that differ from rank to rank and round to round."""
    return (rank() * jnp.uint32(389) + jnp.uint32(round_number) * jnp.uint32(571)) % 1000


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

    return on_every_rank(program)


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


def with_attributes(attributes: dict[str, object]) -> Any:
    return on_every_rank(
        lambda x: x + barrier(new_token(), **attributes)[0]  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            {"devices": np.arange(4, dtype=np.int64), "groups": [[0, 1, 2, 3]]},
            "device [4-7] has no partition in devices",
        ),
        ({"groups": [[0, 1, 2, 3, 4, 5]]}, "partition [67] is in no replica group"),
    ],
)
def test_a_device_without_a_group_is_an_error(attributes: dict[str, object], expected: str) -> None:
    with pytest.raises(XlaError) as caught:
        jax.block_until_ready(with_attributes(attributes)(ranks()))
    # The device's own error, or that of a rank that waits for it.
    assert re.search(rf"hloom\.barrier.*: .*({expected})", str(caught.value))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"groups": [[*range(8), 8]]}, "partition 8 of a replica group is none of 8 partitions"),
        ({"group_size": np.int64(5)}, "replica_groups has 8 numbers, not a multiple of group_size"),
        ({"timeout_ms": 0}, "timeout_ms is 0, not positive"),
        ({"site": np.int64(3)}, "attribute site: .*Wrong (scalar data|attribute) type"),
    ],
)
def test_malformed_attributes_fail_the_compile(
    attributes: dict[str, object], expected: str
) -> None:
    lowered = with_attributes(attributes).lower(ranks())
    with pytest.raises(XlaError, match=rf"hloom\.barrier: {expected}"):
        lowered.compile()
