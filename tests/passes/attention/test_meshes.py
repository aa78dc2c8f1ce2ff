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


def masked_layer(stream: jax.Array, weights: jax.Array, *mask: jax.Array) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dnh->btnh", stream, each) for each in weights)
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    for each in mask:
        seen = seen & each[:, None, None, :]
    scores = jnp.where(seen, jnp.einsum("btnh,bsnh->bnts", q, k) / 3, -1e9)
    mixed = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), v)
    return jnp.sin(stream + mixed.reshape(stream.shape))


def outside(where: str, masks: int, *, manual: set[str] | None = None) -> Callable[..., Any]:
    """A step whose gradient is taken outside of a `shard_map`: of each layer, of a scan of them, or
    in a scan."""
    rows = PartitionSpec("data")

    def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
        specs = (rows, PartitionSpec(), *[rows] * masks)
        names = {} if manual is None else {"axis_names": manual}
        return jax.shard_map(function, in_specs=specs, out_specs=rows, **names)

    def scanned(layer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda stream, weights, *mask: jax.lax.scan(
            lambda carry, each: (layer(carry, each, *mask), None), stream, weights
        )[0]

    def unrolled(stream: jax.Array, weights: jax.Array, *mask: jax.Array) -> jax.Array:
        for number in range(LAYERS):
            stream = mapped(masked_layer)(stream, weights[number], *mask)
        return stream

    of_one = mapped(scanned(masked_layer)) if where == "around" else scanned(mapped(masked_layer))
    function = unrolled if where == "each" else of_one
    return jax.value_and_grad(
        lambda weights, stream, *mask: jnp.sum(jnp.sin(function(stream, weights, *mask))), (0, 1)
    )


def mask_of(mesh: Any) -> jax.Array:
    mask = np.random.default_rng(1).random((BATCH, LENGTH)) < 0.7
    mask[:, 0], mask[0, :3] = True, False  # rows without a key
    return jax.device_put(jnp.asarray(mask), NamedSharding(mesh, PartitionSpec("data")))


@pytest.mark.parametrize(
    ("where", "masks", "said"),
    [
        ("each", 1, f"attentions in a kernel: {LAYERS}, gradients: {LAYERS}"),
        ("around", 1, "attentions in a kernel: 1, gradients: 1"),
        ("inside", 0, "attentions in a kernel: 1, gradients: 1"),
        ("inside", 1, "1 attention left: its mask is made in a manual computation in a loop"),
    ],
)
def test_gradients_outside_of_a_shard_map(where: str, masks: int, said: str) -> None:
    mesh = mesh_of(AxisType.Auto, data=4)
    with jax.set_mesh(mesh):
        given = arrays(mesh, PartitionSpec(), PartitionSpec("data"))
        more = (mask_of(mesh),) * masks
        assert said in compared(outside(where, masks), (*given, *more))


@pytest.mark.parametrize("parts", ["in a row", "by head"])
def test_no_collective_more(parts: str) -> None:
    """One matrix of queries, keys and values, of which two axes of the mesh have columns."""
    mesh = mesh_of(AxisType.Auto, data=4, model=2)

    def whole(stream: jax.Array, weights: jax.Array) -> jax.Array:
        found = stream @ weights.reshape(WIDTH, -1)
        if parts == "by head":
            found = found.reshape(BATCH, LENGTH, HEADS, 3 * SIZE)
        each = (x.reshape(BATCH, LENGTH, HEADS, SIZE) for x in jnp.split(found, 3, -1))
        scores = jnp.einsum("btnh,bsnh->bnts", next(each), next(each)) / 3
        mixed = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), next(each))
        return stream + mixed.reshape(stream.shape)

    def loss(weights: jax.Array, stream: jax.Array) -> jax.Array:
        for number in range(LAYERS):
            stream = whole(stream, weights[number])
        return jnp.mean(jnp.square(stream))

    with jax.set_mesh(mesh):
        weights, stream = arrays(mesh, PartitionSpec(), PartitionSpec("data"))
        place = NamedSharding(mesh, PartitionSpec(None, None, "model"))
        weights = jax.device_put(weights.reshape(LAYERS, WIDTH, 3 * WIDTH), place)
        said = compared(jax.value_and_grad(loss, (0, 1)), (weights, stream))
    more = "with the kernels the mesh's devices would run 1 all-gather and 1 all-to-all more"
    assert said.startswith(f"2 attentions left: {more}" if parts == "in a row" else "attentions")


def test_a_shard_map_over_some_axes_stays() -> None:
    mesh = mesh_of(AxisType.Auto, data=4, model=2)
    with jax.set_mesh(mesh):
        given = arrays(mesh, PartitionSpec(), PartitionSpec("data"))
        said = compared(outside("each", 0, manual={"data"}), given)
    assert "2 attentions left: only some axes of the mesh are manual around it" in said


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
