"""Manual computations in a scan: repeated like what is in them, where nothing is sent for it.

Loops of a program over GPUs that are made faster: less memory, and nothing sent that was not. A
program over a 2x2 slice of TPUs v5p, which are not there: memory and collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import hloom
from benchmarks.common.collectives import collectives_by_kind, sent_bytes_by_kind
from benchmarks.programs.common import checkpoint_with
from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom.passes.framework.feedback import record_in
from hloom.passes.planner.record import RematRecord
from hloom.targets import deviceless
from tests.support.devices.meshes import each_kind_of_axes, mesh_of

FLOOR = "remat{budget=min}"

_BATCH, _WHOLE = PartitionSpec("data"), PartitionSpec()


def _square(x: jax.Array, w: jax.Array) -> jax.Array:
    """Something that no reader does for itself: a product and what it feeds."""
    return jnp.tanh(x @ x.T) @ (x * w)


def _with_a_sum(x: jax.Array, w: jax.Array) -> jax.Array:
    return _square(x, w) + jax.lax.psum(x.sum(), "data")


_Inside = Callable[[jax.Array, jax.Array], jax.Array]


def _lowered(
    axes: AxisType,
    inside: _Inside = _square,
    given: PartitionSpec = _BATCH,
    policy: str | None = None,
) -> Any:
    """The gradient of four layers that each run something on every device's part of the batch.

    Their weights, split along the devices, are ``given`` to it.
    """
    mesh = mesh_of(axes, data=2)
    computation = jax.shard_map(inside, mesh=mesh, in_specs=(_BATCH, given), out_specs=_BATCH)

    def layer(stream: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        return jnp.sin(computation(jnp.cos(stream), weight)), None

    def loss(weights: jax.Array, stream: jax.Array) -> jax.Array:
        body = checkpoint_with(policy, prevent_cse=False)(layer)
        return jnp.square(jax.lax.scan(body, stream, weights)[0]).mean()

    def shaped(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    height = 128 if given == _WHOLE else 256
    weights, stream = shaped((4, height, 256), None, "data"), shaped((256, 256), "data")
    with jax.set_mesh(mesh):
        return jax.jit(jax.grad(loss)).lower(weights, stream)


def _compiled(lowered: Any, spec: str) -> tuple[int, dict[str, int]]:
    """The bytes of its temporaries, and its collectives."""
    program = lowered.compile(compiler_options={"hloom": spec})
    memory = program.memory_analysis()
    return memory.temp_size_in_bytes, collectives_by_kind(program.as_text())


@each_kind_of_axes
def test_one_that_reads_its_operands_where_they_are_is_repeated(axes: AxisType) -> None:
    lowered = _lowered(axes)
    (off, before), (floor, after) = (_compiled(lowered, spec) for spec in ("off", FLOOR))
    # Of some five stacks of 4 x 128 x 256 on a device that of the carry is left.
    assert floor < off * 0.6
    assert after == before


def test_one_that_sums_over_devices_is_not_repeated() -> None:
    lowered = _lowered(AxisType.Auto, _with_a_sum)
    before, after = (_compiled(lowered, spec)[1] for spec in ("off", FLOOR))
    assert after == before


def test_parameters_are_gathered_for_one_as_often_as_for_a_checkpoint() -> None:
    found = _compiled(_lowered(AxisType.Auto, given=_WHOLE), FLOOR)[1]
    checkpointed = _lowered(AxisType.Auto, given=_WHOLE, policy="nothing_saveable")
    most = _compiled(checkpointed, "off")[1]
    assert all(count <= most.get(each, 0) for each, count in found.items())


@pytest.mark.h100
def test_a_step_that_fits_sends_no_more() -> None:
    devices = deviceless.mesh("h100_sxm", 4).devices.reshape(2, 2)
    lowered = ShardedDecoder(Mesh(devices, (DATA, MODEL)), layers=2, sequence=128).lower()
    before, after = (
        lowered.compile(compiler_options={"hloom": spec}) for spec in ("off", "fit{budget=60GiB}")
    )
    plan = hloom.records()[-1].attempts[-1].plan
    assert record_in(plan, RematRecord).cost < 0
    assert hloom.records()[-1].compiles == 1
    assert after.memory_analysis().temp_size_in_bytes < before.memory_analysis().temp_size_in_bytes
    assert collectives_by_kind(after.as_text()) == collectives_by_kind(before.as_text())
    assert sent_bytes_by_kind(after.as_text()) == sent_bytes_by_kind(before.as_text())


TPU_FLOOR = "remat{budget=min compiles=2}"


@pytest.mark.tpu
def test_the_floor_has_the_memory_and_the_collectives_of_a_checkpoint() -> None:
    devices = deviceless.mesh("v5p", 4).devices.reshape(MESHES["both"])
    peaks, kinds = [], []
    for policy, spec in (("nothing_saveable", "off"), (None, TPU_FLOOR)):
        program = ShardedDecoder(Mesh(devices, (DATA, MODEL)), policy, layers=2)
        compiled = program.lower().compile(compiler_options={"hloom": spec})
        peaks.append(compiled.memory_analysis().peak_memory_in_bytes)
        kinds.append(collectives_by_kind(compiled.as_text()))
    assert peaks[1] < 1.01 * peaks[0]
    # For that it does one sum over devices again that the checkpoint does not.
    most = kinds[0] | {"all-reduce": kinds[0]["all-reduce"] + 1}
    assert all(count <= most.get(kind, 0) for kind, count in kinds[1].items())
