"""Manual computations in a scan: repeated like what is in them, where nothing is sent for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.programs.common import checkpoint_with
from hloom.xla.collectives import collectives_by_kind
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
