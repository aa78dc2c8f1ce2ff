"""Training steps that are written once for automatic and for explicit axes of a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.programs.common import Parameters

AXIS, MODEL = "d", "model"


def perceptron(mesh: Mesh) -> Any:
    """A scan over 8 residual layers, the batch sharded, the weights on every device; lowered."""
    layers, width, batch = 8, 256, 16384

    def loss(p: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: Parameters) -> tuple[jax.Array, None]:
            return x + jnp.tanh(jax.nn.gelu(x @ w["a"]) @ w["b"]), None

        return jnp.square(jax.lax.scan(layer, x, p)[0] - y).mean()

    weights = {
        "a": shaped(mesh, layers, width, 4 * width),
        "b": shaped(mesh, layers, 4 * width, width),
    }
    rows = shaped(mesh, batch, width, split=0)
    return jax.jit(_step(loss), donate_argnums=0).lower(weights, rows, rows)


def decoder(mesh: Mesh) -> Any:
    """A scan over 4 layers of a decoder, all matrices and the batch sharded (FSDP); lowered."""
    layers, width, heads, words, batch, length = 4, 256, 8, 1024, 32, 128
    head, hidden = width // heads, 4 * width

    def normalize(x: jax.Array, gain: jax.Array) -> jax.Array:
        wide = x.astype("float32")
        scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
        return (wide * scale).astype(x.dtype) * gain

    def layer(x: jax.Array, p: Parameters) -> tuple[jax.Array, None]:
        normed = normalize(x, p["attention_gain"])
        query, key, value = (jnp.einsum("btd,dhk->bthk", normed, p[name]) for name in "qkv")
        scores = jnp.einsum("bthk,bshk->bhts", query, key).astype("float32") / head**0.5
        causal = jnp.arange(length)[:, None] >= jnp.arange(length)
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
        mixed = jnp.einsum("bhts,bshk->bthk", weights, value)
        x += jnp.einsum("bthk,hkd->btd", mixed, p["attention_out"])
        normed = normalize(x, p["gain"])
        return x + (jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])) @ p["down"], None

    def loss(parameters: Parameters, tokens: jax.Array) -> jax.Array:
        p = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), parameters)
        rows = NamedSharding(mesh, PartitionSpec(AXIS, None, None))
        if mesh.axis_types[0] == AxisType.Explicit:
            x = p["embedding"].at[tokens].get(out_sharding=rows)
        else:
            x = jax.lax.with_sharding_constraint(p["embedding"][tokens], rows)
        x, _ = jax.lax.scan(layer, x, p["layers"])
        logits = normalize(x, p["gain"]) @ p["out"]
        # A gather along the rows of a sharded array is told where its result lies.
        wanted = jax.nn.one_hot(jnp.roll(tokens, -1, axis=1), words)
        wide = logits.astype("float32")
        return (jax.nn.logsumexp(wide, -1) - (wide * wanted).sum(-1)).mean()

    parameters = {
        "embedding": shaped(mesh, words, width, split=1),
        "out": shaped(mesh, width, words, split=0),
        "gain": shaped(mesh, width),
        "layers": {
            "attention_gain": shaped(mesh, layers, width),
            "gain": shaped(mesh, layers, width),
            **{name: shaped(mesh, layers, width, heads, head, split=1) for name in "qkv"},
            "attention_out": shaped(mesh, layers, heads, head, width, split=1),
            "gate": shaped(mesh, layers, width, hidden, split=1),
            "up": shaped(mesh, layers, width, hidden, split=1),
            "down": shaped(mesh, layers, hidden, width, split=1),
        },
    }
    tokens = shaped(mesh, batch, length, split=0, dtype="int32")
    placed = jax.tree.map(lambda leaf: leaf.sharding, parameters)
    step = jax.jit(_step(loss), donate_argnums=0, out_shardings=(placed, None))
    return step.lower(parameters, tokens)


def head(mesh: Mesh) -> Any:
    """A layer and a loss over 32768 words, both of them split over "model", the batch over the
    other axis; lowered. On explicit axes there is a constraint behind each product, which is not
    implied: nothing else keeps the other dimensions whole."""
    width, words, batch, length = 512, 32768, 16, 512

    def loss(parameters: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
        p = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), parameters)
        rows = NamedSharding(mesh, PartitionSpec(AXIS, None, None))
        hidden = jax.nn.gelu(x.astype("bfloat16") @ p["up"])
        if mesh.axis_types[0] == AxisType.Explicit:
            x = x + jnp.einsum("btf,fd->btd", hidden, p["down"], out_sharding=rows)
        else:
            x = x + jax.lax.with_sharding_constraint(hidden @ p["down"], rows)
        wide = (x.astype("bfloat16") @ p["out"]).astype("float32")
        wanted = jax.nn.one_hot(labels, words)
        return (jax.nn.logsumexp(wide, -1) - (wide * wanted).sum(-1)).mean()

    parameters = {
        "up": shaped(mesh, width, 4 * width, split=1, over=MODEL),
        "down": shaped(mesh, 4 * width, width, split=0, over=MODEL),
        "out": shaped(mesh, width, words, split=1, over=MODEL),
    }
    x = shaped(mesh, batch, length, width, split=0)
    labels = shaped(mesh, batch, length, split=0, dtype="int32")
    return jax.jit(_step(loss), donate_argnums=0).lower(parameters, x, labels)


def sharded_twice(
    mesh: Mesh, *, width: int = 512, heads: int = 8, batch: int = 16, length: int = 512
) -> Any:
    """A scan over 4 layers of a decoder: FSDP along the mesh's first axis, heads, hidden units and
    words split over "model"; lowered. Where axes are explicit, weights are gathered by a constraint
    behind the one that JAX writes, and a mask has one behind each of its operations."""
    layers, words = 4, 32 * width
    is_explicit = mesh.axis_types[0] == AxisType.Explicit

    def placed(x: jax.Array, *axes: str | None) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        if is_explicit:
            return jax.sharding.reshard(x, sharding)
        return jax.lax.with_sharding_constraint(x, sharding)

    def product(equation: str, x: jax.Array, w: jax.Array, *axes: str | None) -> jax.Array:
        if is_explicit:
            sharding = NamedSharding(mesh, PartitionSpec(*axes))
            return jnp.einsum(equation, x, w, out_sharding=sharding)
        return placed(jnp.einsum(equation, x, w), *axes)

    def gathered(w: jax.Array, *axes: str | None) -> jax.Array:
        return placed(w.astype("bfloat16"), *axes)

    def normalize(x: jax.Array) -> jax.Array:
        wide = x.astype("float32")
        return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)).astype(
            x.dtype
        )

    def layer(x: jax.Array, p: Parameters) -> tuple[jax.Array, None]:
        normed, by_head = normalize(x), (AXIS, None, MODEL, None)
        query, key, value = (
            product("btd,dhk->bthk", normed, gathered(p[name], None, MODEL, None), *by_head)
            for name in "qkv"
        )
        scores = jnp.einsum("bthk,bshk->bhts", query, key).astype("float32")
        causal = jnp.arange(length)[:, None] >= jnp.arange(length)
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
        mixed, out = jnp.einsum("bhts,bshk->bthk", weights, value), p["attention_out"]
        x += product("bthk,hkd->btd", mixed, gathered(out, MODEL, None, None), AXIS, None, None)
        normed, by_unit = normalize(x), (AXIS, None, MODEL)
        gate, up = (
            product("btd,df->btf", normed, gathered(p[name], None, MODEL), *by_unit)
            for name in ("gate", "up")
        )
        hidden, down = jax.nn.silu(gate) * up, gathered(p["down"], MODEL, None)
        return x + product("btf,fd->btd", hidden, down, AXIS, None, None), None

    def loss(p: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(layer, x.astype("bfloat16"), p["layers"])
        out = gathered(p["out"], None, MODEL)
        wide = product("btd,dv->btv", normalize(x), out, AXIS, None, MODEL).astype("float32")
        wanted = jax.nn.one_hot(labels, words)
        return (jax.nn.logsumexp(wide, -1) - (wide * wanted).sum(-1)).mean()

    def split(*shape: int, axes: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    by_row, by_column = (None, AXIS, MODEL), (None, MODEL, AXIS)
    each = layers, width, heads, width // heads
    parameters = {
        "out": split(width, words, axes=(AXIS, MODEL)),
        "layers": {
            **{name: split(*each, axes=(*by_row, None)) for name in "qkv"},
            "attention_out": split(
                layers, heads, width // heads, width, axes=(None, MODEL, None, AXIS)
            ),
            **{name: split(layers, width, 4 * width, axes=by_row) for name in ("gate", "up")},
            "down": split(layers, 4 * width, width, axes=by_column),
        },
    }
    x = shaped(mesh, batch, length, width, split=0)
    labels = shaped(mesh, batch, length, split=0, dtype="int32")
    where = jax.tree.map(lambda leaf: leaf.sharding, parameters)
    step = jax.jit(_step(loss), donate_argnums=0, out_shardings=(where, None))
    return step.lower(parameters, x, labels)


def shaped(
    mesh: Mesh,
    *shape: int,
    split: int | None = None,
    over: str = AXIS,
    dtype: str = "float32",
) -> jax.ShapeDtypeStruct:
    """The shape of an argument, one axis of it sharded over one of the mesh, or none."""
    axes = [over if axis == split else None for axis in range(len(shape))]
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _step(loss: Any) -> Any:
    def step(parameters: Parameters, *data: jax.Array) -> tuple[Parameters, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        updated = jax.tree.map(lambda old, g: old - 1e-3 * g, parameters, gradients)
        return updated, value

    return step
