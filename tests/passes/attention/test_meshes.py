"""Attention on several devices: values, collectives, where results lie, and what is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import hloom
from tests.support.devices.meshes import mesh_of

BATCH, LENGTH, HEADS, SIZE, LAYERS = 4, 16, 4, 8, 2
WIDTH = HEADS * SIZE
SPEC = "attention{kernel=emulated min_keys=1}"
COLLECTIVES = re.compile(r"= \S+ (all-gather|all-reduce|all-to-all|reduce-scatter)(?:-start)?\(")


def layer(stream: jax.Array, weights: jax.Array, shared: int) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dnh->btnh", stream, each) for each in weights)
    k, v = k[:, :, :shared], v[:, :, :shared]
    q = q.reshape(BATCH, LENGTH, shared, HEADS // shared, SIZE)
    scores = jnp.einsum("btngh,bsnh->bngts", q, k) / SIZE**0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = jnp.einsum("bngts,bsnh->btngh", jax.nn.softmax(scores), v)
    return stream + mixed.reshape(BATCH, LENGTH, WIDTH)


def step(shared: int, scanned: bool) -> Callable[..., Any]:
    def loss(weights: jax.Array, stream: jax.Array) -> jax.Array:
        if scanned:
            stream, _ = jax.lax.scan(
                lambda carry, each: (layer(carry, each, shared), None), stream, weights
            )
        else:
            for number in range(LAYERS):
                stream = layer(stream, weights[number], shared)
        return jnp.mean(jnp.square(stream))

    return jax.value_and_grad(loss, (0, 1))


def arrays(mesh: Any, weights: PartitionSpec, stream: PartitionSpec) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((LAYERS, 3, WIDTH, HEADS, SIZE)) * 0.2
    tokens = rng.standard_normal((BATCH, LENGTH, WIDTH))
    return (
        jax.device_put(jnp.asarray(drawn, "float32"), NamedSharding(mesh, weights)),
        jax.device_put(jnp.asarray(tokens, "float32"), NamedSharding(mesh, stream)),
    )


def compared(function: Callable[..., Any], arguments: tuple[jax.Array, ...]) -> str:
    """Runs a step with and without the pass; returns the plan."""
    off = jax.jit(function, compiler_options={"hloom": "off"}).lower(*arguments).compile()
    on = jax.jit(function, compiler_options={"hloom": SPEC}).lower(*arguments).compile()
    before, after = (jax.tree.leaves(each(*arguments)) for each in (off, on))
    for wanted, got in zip(before, after, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5 * float(jnp.abs(wanted).max()))
        assert got.sharding.is_equivalent_to(wanted.sharding, got.ndim)
    sent = [Counter(COLLECTIVES.findall(each.as_text() or "")) for each in (off, on)]
    assert sent[1] <= sent[0]
    return hloom.records()[-1].runs[-1].summary


@pytest.mark.parametrize(
    ("axes", "shared", "scanned"),
    [
        (AxisType.Auto, HEADS, False),
        (AxisType.Auto, HEADS, True),
        (AxisType.Auto, 1, False),
        (AxisType.Auto, 1, True),
        (AxisType.Explicit, HEADS, False),
    ],
)
def test_batch_and_heads_over_devices(axes: AxisType, shared: int, scanned: bool) -> None:
    mesh = mesh_of(axes, data=4, model=2)
    over_heads = PartitionSpec(None, None, None, "model")
    with jax.set_mesh(mesh):
        given = arrays(mesh, over_heads, PartitionSpec("data"))
        told = compared(step(shared, scanned), given)
    count = 1 if scanned else LAYERS
    assert f"attentions in a kernel: {count}, gradients: {count}" in told


def test_each_device_has_its_own_in_a_manual_computation() -> None:
    mesh = mesh_of(AxisType.Auto, data=4)
    rows = PartitionSpec("data")

    def loss(weights: jax.Array, stream: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(layer_of_one(stream, weights[0])))

    def own(weights: jax.Array, stream: jax.Array) -> jax.Array:
        return jax.grad(loss, 1)(weights, stream)

    divided = jax.shard_map(own, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows)
    told = compared(divided, arrays(mesh, PartitionSpec(), rows))
    assert "attentions in a kernel: 1, gradients: 1" in told


def layer_of_one(stream: jax.Array, weights: jax.Array) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dnh->btnh", stream, each) for each in weights)
    scores = jnp.einsum("btnh,bsnh->bnts", q, k)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), v)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (PartitionSpec(None, "data"), "axis 'data' of the mesh divides its keys"),
        (PartitionSpec("data"), "attentions in a kernel"),
    ],
    ids=["positions", "batch"],
)
def test_divided_positions_stay(stream: PartitionSpec, reason: str) -> None:
    mesh = mesh_of(AxisType.Auto, data=4)
    told = compared(step(HEADS, scanned=False), arrays(mesh, PartitionSpec(), stream))
    assert reason in told
