"""Programs over a mesh: collectives that recomputation adds have a price; results are the same."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import hloom
from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom.xla.collectives import collectives_by_kind

pytestmark = pytest.mark.long

FLOOR, ROOM = "remat{budget=min}", "remat{budget=65%}"


@functools.cache
def decoder(kind: str, policy: str | None = None) -> ShardedDecoder:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES[kind]), (DATA, MODEL))
    return ShardedDecoder(mesh, policy, layers=3, sequence=128)


@functools.cache
def compiled(kind: str, spec: str = "off", policy: str | None = None) -> Any:
    return decoder(kind, policy).lower().compile(compiler_options={"hloom": spec})


def temp_bytes(program: Any) -> int:
    return int(program.memory_analysis().temp_size_in_bytes)


@pytest.mark.parametrize("kind", MESHES)
def test_the_floor_is_that_of_a_checkpoint_that_saves_nothing(kind: str) -> None:
    """In memory and in collectives: both do sums over devices again."""
    floor, checkpointed = compiled(kind, FLOOR), compiled(kind, policy="nothing_saveable")
    assert temp_bytes(checkpointed) < temp_bytes(compiled(kind)) / 2
    assert temp_bytes(floor) <= temp_bytes(checkpointed) * 1.01
    most, own = (collectives_by_kind(each.as_text()) for each in (checkpointed, compiled(kind)))
    assert set(most) <= set(own)
    assert all(count <= most[each] for each, count in collectives_by_kind(floor.as_text()).items())


@pytest.mark.parametrize("kind", MESHES)
def test_a_budget_with_room_adds_no_collectives(kind: str) -> None:
    """Sums over devices have a price: what is cheaper to recompute goes first."""
    program, held = compiled(kind), compiled(kind, ROOM)
    # A share that is missed by at most half a percent counts as held.
    assert temp_bytes(held) <= temp_bytes(program) * 0.65 * 1.005
    own, found = (collectives_by_kind(each.as_text()) for each in (program, held))
    assert all(count <= own[each] for each, count in found.items())


@pytest.mark.parametrize("kind", MESHES)
def test_the_floor_is_predicted_for_one_device(kind: str) -> None:
    """Scaled by what the program takes unmodified, as all predictions are."""
    known = len(hloom.records())
    decoder(kind).lower().compile(compiler_options={"hloom": FLOOR})
    [record] = hloom.records()[known:]
    last = record.attempts[-1]
    assert last.predicted_step_bytes is not None
    assert last.step_bytes is not None
    # What the partitioner gathers is not counted; parameters of this size are much of the step.
    assert abs(last.predicted_step_bytes / last.step_bytes - 1) < 0.25


@pytest.mark.parametrize("kind", MESHES)
def test_the_loss_and_the_gradients_are_the_same(kind: str) -> None:
    program = decoder(kind)
    draw = np.random.default_rng(0)
    tokens = program.tokens()
    arguments = (
        jax.tree.map(
            lambda leaf: jax.device_put(
                draw.normal(size=leaf.shape, scale=0.05).astype(leaf.dtype), leaf.sharding
            ),
            program.parameters(),
        ),
        jax.device_put(
            draw.integers(program.vocabulary, size=tokens.shape, dtype="int32"), tokens.sharding
        ),
    )
    wanted, got = (compiled(kind, spec)(*arguments) for spec in ("off", FLOOR))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        # XLA:CPU rounds to bfloat16 in other places where a sharding constraint is gone: by up to
        # 1.8 % of the largest element, also where nothing is recomputed.
        np.testing.assert_allclose(one, other, atol=2.5e-2 * np.abs(other).max(), rtol=0)
