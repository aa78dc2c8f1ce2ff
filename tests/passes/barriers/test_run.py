"""`barriers` on 8 devices, around a kernel that notices when its peers are not there."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support.devices.barrier_programs import barrier_kinds
from support.devices.peer_programs import (
    AXIS,
    all_have_left,
    exchange,
    on_every_device,
    parts,
    publish,
    read_peers,
    register_peers,
)

import hloom

pytestmark = pytest.mark.wheel

RUNS = 5
"""Each program, as the delays differ from run to run."""

HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]

Records = Callable[[], tuple[hloom.CompileRecord, ...]]


@pytest.fixture(scope="module", autouse=True)
def _peers(tmp_path_factory: pytest.TempPathFactory) -> None:
    register_peers(tmp_path_factory.mktemp("peers"))


def check(program: Callable[[jax.Array], jax.Array], wanted: np.ndarray) -> None:
    """Runs a program on each device's part of `parts()`; it fails by itself where it is unsafe."""
    compiled = on_every_device(program)
    for _ in range(RUNS):
        np.testing.assert_allclose(compiled(parts()), wanted, rtol=1e-6)


def summed(x: np.ndarray | jax.Array, *, devices: int = 8, groups: int = 1) -> np.ndarray:
    """What `exchange` gives: each device's part is the sum over its group, in equal groups."""
    by_device = np.asarray(x).reshape(groups, devices // groups, -1)
    total = by_device.sum(axis=1, keepdims=True)
    return np.broadcast_to(total, by_device.shape).reshape(-1)


def plan(new_records: Records) -> dict[str, object]:
    """The plan of the compile that was last."""
    return new_records()[-1].runs[-1].plan


def kinds(new_records: Records) -> list[str]:
    """The kinds of its barriers."""
    return barrier_kinds(plan(new_records))


def test_a_kernel_waits_for_its_peers() -> None:
    check(lambda x: exchange(x * 2, 1) + 1, summed(parts() * 2) + 1)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("barriers{entry=off timeout=1s}", "is not there yet"),
        ("barriers{exit=off}", "is still reading"),
        (None, "unsafe at site 1: device . "),
    ],
)
def test_without_its_barriers_it_does_not(spec: str | None, error: str) -> None:
    compiled = on_every_device(lambda x: exchange(x * 2, 1), spec)

    def run_often() -> None:
        for _ in range(200):
            compiled(parts()).block_until_ready()

    with pytest.raises(jax.errors.JaxRuntimeError, match=error):
        run_often()


def test_only_the_peers_of_a_group_wait() -> None:
    check(lambda x: exchange(x, 1, groups=HALVES), summed(parts(), groups=2))


def test_in_one_order_with_collectives() -> None:
    def program(x: jax.Array) -> jax.Array:
        return exchange(x, 1) + jax.lax.psum(x, AXIS) + exchange(jax.lax.psum(x * 2, AXIS), 2)

    total = summed(parts())
    check(program, 2 * total + 8 * 2 * total)


def test_in_a_scan() -> None:
    def program(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return exchange(carry, 1) / 8, None

        return jax.lax.scan(body, x, None, length=6)[0]

    check(program, summed(parts()) / 8)


def test_in_a_scan_whose_exits_wait_for_the_end_of_the_iteration(new_records: Records) -> None:
    def program(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            read = read_peers(publish(carry, 1), 1, needs="entry exit=module")
            return read / 8, None

        return jax.lax.scan(body, x, None, length=6)[0]

    check(program, summed(parts()) / 8)
    assert kinds(new_records) == ["entry", "module"]


def test_in_nested_loops() -> None:
    def program(x: jax.Array) -> jax.Array:
        def inner(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return exchange(carry, 1) / 8, None

        def outer(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            carry = jax.lax.scan(inner, carry, None, length=3)[0]
            return exchange(carry, 2) / 8, None

        return jax.lax.scan(outer, x, None, length=3)[0]

    check(program, summed(parts()) / 8)


def test_in_a_branch_that_only_some_devices_take() -> None:
    def program(x: jax.Array) -> jax.Array:
        takes = jax.lax.axis_index(AXIS) < 4
        x = jax.lax.cond(takes, lambda x: exchange(x, 1, groups=HALVES), lambda x: x, x)
        return exchange(x, 2)

    half = np.array(parts())
    half[:32] = summed(half[:32], devices=4)
    check(program, summed(half))


def test_in_a_call_that_is_not_inlined() -> None:
    @jax.jit
    def called(x: jax.Array) -> jax.Array:
        return exchange(x, 1) / 8

    def program(x: jax.Array) -> jax.Array:
        with set_xla_metadata(anything="else"):
            return called(called(x))

    check(program, summed(parts()) / 8)


def test_a_loop_whose_condition_has_a_collective() -> None:
    def program(x: jax.Array) -> jax.Array:
        def goes_on(state: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jax.lax.psum(state[0], AXIS) < 8 * 4

        def body(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return state[0] + 1, exchange(state[1], 1) / 8

        return exchange(jax.lax.while_loop(goes_on, body, (jnp.int32(0), x))[1], 2)

    check(program, summed(parts()))


def test_an_exit_that_may_wait_is_served_by_the_next_entry(new_records: Records) -> None:
    def program(x: jax.Array) -> jax.Array:
        first = read_peers(publish(x, 1), 1, needs="entry exit=module")
        second = read_peers(publish(first, 2), 2)
        return all_have_left(all_have_left(second, 1), 2)

    check(program, 8 * summed(parts()))
    assert kinds(new_records) == ["entry", "exit+entry", "exit"]


def test_an_exit_is_served_by_a_collective(new_records: Records) -> None:
    def program(x: jax.Array) -> jax.Array:
        read = read_peers(publish(x, 1), 1)
        total = jax.lax.psum(x, AXIS)
        return all_have_left(read, 1) + total

    check(program, 2 * summed(parts()))
    assert kinds(new_records) == ["entry", "pin"]


def test_an_entry_is_served_by_a_collective(new_records: Records) -> None:
    def program(x: jax.Array) -> jax.Array:
        published = publish(x, 1)
        total = jax.lax.psum(x, AXIS)
        return all_have_left(read_peers(published, 1), 1) + total

    check(program, 2 * summed(parts()))
    assert kinds(new_records) == ["pin", "pin", "exit"]


def test_a_program_of_two_shard_maps() -> None:
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    part = PartitionSpec(AXIS)

    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        for site in (1, 2):
            x = jax.shard_map(
                lambda x, site=site: exchange(x, site),
                mesh=mesh, in_specs=part, out_specs=part, check_vma=False,
            )(x + 1)  # fmt: skip
        return x

    compiled = program.lower(parts()).compile(compiler_options={"hloom": "barriers"})
    for _ in range(RUNS):
        wanted = summed(summed(parts() + 1) + 1)
        np.testing.assert_allclose(compiled(parts()), wanted, rtol=1e-6)


def test_on_some_axes_of_a_mesh() -> None:
    """The others are the partitioner's: each of their devices runs the whole of the kernel."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), (AXIS, "other"))
    part = PartitionSpec(AXIS)
    program = jax.shard_map(
        lambda x: exchange(x, 1, groups=[[0, 2, 4, 6], [1, 3, 5, 7]]) + jax.lax.psum(x, AXIS),
        mesh=mesh, in_specs=part, out_specs=part, axis_names={AXIS}, check_vma=False,
    )  # fmt: skip
    compiled = jax.jit(program, compiler_options={"hloom": "barriers"})
    x = jax.device_put(parts(), NamedSharding(mesh, part))
    for _ in range(RUNS):
        wanted = 2 * summed(parts(), devices=4)
        np.testing.assert_allclose(compiled(x), wanted, rtol=1e-6)


def test_a_donated_argument() -> None:
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    part = PartitionSpec(AXIS)
    mapped = jax.shard_map(
        lambda x: exchange(x, 1), mesh=mesh, in_specs=part, out_specs=part, check_vma=False
    )
    compiled = jax.jit(mapped, compiler_options={"hloom": "barriers"}, donate_argnums=0)
    for _ in range(RUNS):
        x = jax.device_put(parts(), NamedSharding(mesh, part))
        np.testing.assert_allclose(compiled(x), summed(parts()), rtol=1e-6)
        assert x.is_deleted()


def test_beside_host_callbacks() -> None:
    seen: list[float] = []

    def program(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda value: seen.append(float(value)), x[0])
        return exchange(x, 1)

    check(program, summed(parts()))
    jax.effects_barrier()
    assert len(seen) == 8 * RUNS


@pytest.mark.parametrize("spec", ["barriers,remat", "remat,barriers", "cse,barriers,cse"])
def test_with_other_passes(spec: str) -> None:
    def loss(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(carry) * 1.5 + jnp.sin(carry), None

        return jax.lax.scan(body, x, None, length=4)[0].sum()

    def program(x: jax.Array) -> jax.Array:
        return exchange(jax.grad(loss)(x), 1) + exchange(jax.grad(loss)(x), 2)

    with_passes = on_every_device(program, spec)
    wanted = 2 * summed(jax.vmap(jax.grad(loss))(parts().reshape(8, -1)).reshape(-1))
    for _ in range(RUNS):
        np.testing.assert_allclose(with_passes(parts()), wanted, rtol=1e-4)
