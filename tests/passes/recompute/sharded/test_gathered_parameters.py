"""Parameters that a program gathers by a constraint: gathered again, as its checkpoint does it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.programs.common import checkpoint_with
from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedMixture
from hloom.xla.collectives import collectives_by_kind
from tests.support.devices.meshes import each_kind_of_axes, mesh_of

pytestmark = pytest.mark.long

FLOOR = "remat{budget=min}"
SAVES_NOTHING = "nothing_saveable"


@functools.cache
def mixture(spec: str = "off", policy: str | None = None) -> Any:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES["fsdp"]), (DATA, MODEL))
    program = ShardedMixture(mesh, policy, layers=3, sequence=64, hidden=256, vocabulary=512)
    return program.lower().compile(compiler_options={"hloom": spec})


def temp_bytes(program: Any) -> int:
    return int(program.memory_analysis().temp_size_in_bytes)


# XLA of the newest version takes 21 s for the three of them; decoders are compiled on both.
@pytest.mark.once
def test_the_floor_of_a_mixture_of_experts_is_that_of_a_checkpoint_that_saves_nothing() -> None:
    off, floor = temp_bytes(mixture()), temp_bytes(mixture(FLOOR))
    checkpointed = temp_bytes(mixture(policy=SAVES_NOTHING))
    assert checkpointed < off / 2
    # Values too small to be planned for stay.
    assert floor - checkpointed < (off - checkpointed) / 25


@pytest.mark.once
def test_the_floor_of_a_mixture_of_experts_exchanges_no_more_than_the_checkpoint() -> None:
    most = collectives_by_kind(mixture(policy=SAVES_NOTHING).as_text())
    found = collectives_by_kind(mixture(FLOOR).as_text())
    assert all(count <= most.get(each, 0) for each, count in found.items())


def _lowered(axes: AxisType, policy: str | None) -> Any:
    """The gradient of three layers over two devices whose weights are gathered by name."""
    mesh = mesh_of(axes, data=2)
    whole = NamedSharding(mesh, PartitionSpec(None, None))
    gathered = jax.sharding.reshard if axes is AxisType.Explicit else _held

    def layer(stream: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.tanh(stream @ gathered(weight, whole))

    def loss(weights: jax.Array, stream: jax.Array) -> jax.Array:
        body = checkpoint_with(policy, prevent_cse=False)(layer)
        stream, _ = jax.lax.scan(lambda c, w: (body(c, w), None), stream, weights)
        return jnp.square(stream).mean()

    def shaped(*shape: int, axes: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    weights = shaped(3, 128, 128, axes=(None, "data", None))
    stream = shaped(16, 128, axes=("data", None))
    with jax.set_mesh(mesh):
        return jax.jit(jax.grad(loss)).lower(weights, stream)


def _held(value: jax.Array, sharding: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(value, sharding)


@each_kind_of_axes
def test_gathered_weights_are_not_kept_and_are_gathered_once_a_pass(axes: AxisType) -> None:
    found = {
        (policy, spec): _lowered(axes, policy).compile(compiler_options={"hloom": spec})
        for policy, spec in ((None, "off"), (None, FLOOR), (SAVES_NOTHING, "off"))
    }
    off, floor, checkpointed = found.values()
    assert temp_bytes(floor) < temp_bytes(off)
    most = collectives_by_kind(checkpointed.as_text())
    gathers = collectives_by_kind(floor.as_text())
    assert all(count <= most.get(each, 0) for each, count in gathers.items())


@each_kind_of_axes
def test_where_the_backward_pass_gathers_weights_already_clones_read_those(axes: AxisType) -> None:
    def gathers(spec: str) -> int:
        program = _lowered(axes, "dots_saveable").compile(compiler_options={"hloom": spec})
        return collectives_by_kind(program.as_text())["all-gather"]

    assert gathers(FLOOR) == gathers("off")
