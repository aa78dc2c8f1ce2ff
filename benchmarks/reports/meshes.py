"""Reports about steps over several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from benchmarks.reports.job import Array, Grid, Job, array

Wrap = Callable[..., Any]


def _alone(function: Any) -> Any:
    return function


def accumulating() -> Job:
    """A decoder over two axes, with the batch accumulated."""
    layers, batch, length, width, heads, words, parts = 4, 32, 256, 512, 8, 8192, 4

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        split = (*x.shape[:2], 3, heads, width // heads)
        q, k, v = jnp.moveaxis((x @ w["in"]).reshape(split), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = x + mixed.reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def loss(p: Any, tokens: jax.Array) -> jax.Array:
        x = jax.lax.with_sharding_constraint(p["words"][tokens], PartitionSpec("fsdp"))
        x, _ = jax.lax.scan(layer, x, p["layers"])
        logits = x @ p["head"]
        wanted = jax.nn.one_hot(jnp.roll(tokens, -1, 1), words)
        return (jax.nn.logsumexp(logits, -1) - (logits * wanted).sum(-1)).mean()

    def update(p: Any, grads: Any) -> Any:
        return jax.tree.map(lambda a, g: a - 1e-3 * g, p, grads)

    def step(p: Any, tokens: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(p, tokens)
        return update(p, grads), value

    def by_hand(p: Any, tokens: jax.Array) -> Any:
        def part(total: Any, some: jax.Array) -> tuple[Any, jax.Array]:
            value, grads = jax.value_and_grad(loss)(p, some)
            return jax.tree.map(jnp.add, total, grads), value

        # Strided, so that each device keeps its own rows.
        rows = tokens.reshape(batch // parts, parts, length).swapaxes(0, 1)
        rows = jax.lax.with_sharding_constraint(rows, PartitionSpec(None, "fsdp"))
        grads, values = jax.lax.scan(part, jax.tree.map(jnp.zeros_like, p), rows)
        return update(p, jax.tree.map(lambda g: g / parts, grads)), values.mean()

    weights = {
        "words": array(words, width, axes=(None, ("fsdp", "tensor"))),
        "head": array(width, words, axes=("fsdp", "tensor")),
        "layers": {
            "in": array(layers, width, 3 * width, axes=(None, "fsdp", "tensor")),
            "out": array(layers, width, width, axes=(None, "tensor", "fsdp")),
            "up": array(layers, width, 4 * width, axes=(None, "fsdp", "tensor")),
            "down": array(layers, 4 * width, width, axes=(None, "tensor", "fsdp")),
        },
    }
    return Job(
        "young-geng/EasyLM#36",
        "a decoder over (fsdp 4, tensor 2)",
        step,
        (weights, array(batch, length, dtype="int32", axes=("fsdp",))),
        (f"accumulate{{microbatches={parts}}}", "fit{budget=60%}"),
        {f"a scan over {parts} microbatches": by_hand},
        Grid({"fsdp": 4, "tensor": 2}),
        donate=(0,),
    )


def gathered_parameters(*, explicit: bool) -> Job:
    """Layers in a straight line whose sharded parameters are gathered, and kept."""
    layers, batch, width = 6, 4096, 1024

    def layer(x: jax.Array, w: Any) -> jax.Array:
        up, down = (jax.sharding.reshard(each, PartitionSpec()) for each in w)
        return x + jax.nn.gelu(x @ up) @ down

    def constrained(x: jax.Array, w: Any) -> jax.Array:
        up, down = (jax.lax.with_sharding_constraint(each, PartitionSpec()) for each in w)
        return x + jax.nn.gelu(x @ up) @ down

    def step(wrap: Wrap) -> Any:
        def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            for w in p:
                x = wrap(layer if explicit else constrained)(x, w)
            return jnp.square(x - y).mean()

        def update(p: Any, x: jax.Array, y: jax.Array) -> Any:
            value, grads = jax.value_and_grad(loss)(p, x, y)
            return jax.tree.map(lambda a, g: a - 1e-3 * g, p, grads), value

        return update

    weights = [
        (array(width, 4 * width, axes=("x",)), array(4 * width, width, axes=("x",)))
    ] * layers
    rows = array(batch, width, axes=("x",))
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return Job(
        "jax-ml/jax#25010",
        f"gathered parameters of 6 layers, {kind.name.lower()} axes",
        step(_alone),
        (weights, rows, rows),
        ("fit{budget=50%}", "fit{budget=min}"),
        {"checkpoint of each layer": step(jax.checkpoint)},
        Grid({"x": 8}, kind),
        donate=(0,),
    )


def local_experts() -> Job:
    """Each device has all tokens and its own experts, with adapters of low rank."""
    experts, width, hidden, rank, tokens, devices = 32, 512, 1024, 8, 4096, 4

    def mix(x: jax.Array, chosen: jax.Array, up: Any, down: Any, a: Any, b: Any) -> jax.Array:
        order = jnp.argsort(chosen)
        sizes, mine = jnp.bincount(chosen, length=experts), up.shape[0]
        first = jax.lax.axis_index("experts") * mine
        before = jnp.where(jnp.arange(experts) < first, sizes, 0).sum()
        local = jax.lax.dynamic_slice(sizes, (first,), (mine,))
        rows = jnp.roll(x[order], -before, 0)  # rows of my experts come first
        inner = jax.lax.ragged_dot(rows, up, local)
        inner += jax.lax.ragged_dot(jax.lax.ragged_dot(rows, a, local), b, local)
        out = jax.lax.ragged_dot(jax.nn.silu(inner), down, local)
        out = jnp.where((jnp.arange(tokens) < local.sum())[:, None], out, 0)
        return jax.lax.psum(jnp.roll(out, before, 0)[jnp.argsort(order)], "experts")

    split, whole = PartitionSpec("experts"), PartitionSpec()

    def loss(adapters: Any, frozen: Any, x: jax.Array, chosen: jax.Array) -> jax.Array:
        mixed = jax.shard_map(
            mix, in_specs=(whole, whole, *(split,) * 4), out_specs=whole, check_vma=False
        )(x, chosen, *frozen, *adapters)
        return jnp.square(x + mixed).mean()

    def step(adapters: Any, frozen: Any, x: jax.Array, chosen: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(adapters, frozen, x, chosen)
        return jax.tree.map(lambda p, g: p - 0.1 * g, adapters, grads), value

    def each(rows: int, columns: int) -> Array:
        return array(experts, rows, columns, dtype="bfloat16", axes=("experts",))

    return Job(
        "jax-ml/jax#34168",
        "experts over devices, with adapters",
        step,
        (
            (each(width, rank), each(rank, hidden)),
            (each(width, hidden), each(hidden, width)),
            array(tokens, width, dtype="bfloat16"),
            array(tokens, dtype="int32"),
        ),
        ("ragged", "ragged{loops=all}", "fit{budget=50%}", "ragged,fit{budget=50%}"),
        grid=Grid({"experts": devices}),
        donate=(0,),
    )


def resharded() -> Job:
    """A value whose split axis moves to another dimension while that splits further."""
    size = 256
    wide, tall = PartitionSpec("y", None, "x"), PartitionSpec(None, ("x", "y"), None)
    between = PartitionSpec(None, "y", "x")

    def step(stop: bool) -> Any:
        def mix(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
            added = a + b
            if stop:
                added = jax.lax.with_sharding_constraint(added, between)
            return c + jax.lax.with_sharding_constraint(added, tall)

        return mix

    first, last = (array(size, size, size, axes=tuple(spec)) for spec in (wide, tall))
    return Job(
        "jax-ml/jax#21562, jax-ml/jax#18591",
        "from one sharding to another",
        step(False),
        (first, first, last),
        ("fit",),
        {"a stop between": step(True)},
        Grid({"x": 4, "y": 2}),
    )


def pipelined() -> Job:
    """Layers in a scan whose weights are split over stages."""
    layers, batch, length, width = 16, 32, 128, 512

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(p: Any) -> jax.Array:
            return jnp.square(jax.lax.scan(layer, x, p)[0] - y).mean()

        value, grads = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda a, g: a - 1e-3 * g, p, grads), value

    weights = {
        "up": array(layers, width, 4 * width, axes=("stage",)),
        "down": array(layers, 4 * width, width, axes=("stage",)),
    }
    rows = array(batch, length, width, axes=("data",))
    return Job(
        "stanford-crfm/haliax#1",
        "a scan of layers over (stage 4, data 2)",
        step,
        (weights, rows, rows),
        ("pipeline{axis=stage microbatches=8}",),
        grid=Grid({"stage": 4, "data": 2}),
        donate=(0,),
    )
