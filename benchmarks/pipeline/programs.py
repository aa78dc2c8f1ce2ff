"""Steps over scanned layers, small ones for values: each a function and its arguments.

Layers are stacked; everything below "layers" is sharded along them over the axis `stage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

Tree = Any
Step = Callable[..., Any]

LAYERS, WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 8, 32, 4, 64, 16, 16


def _normal(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    scale = 0.05
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(dtype)


def parameters(layers: int = LAYERS) -> Tree:
    """Of a small GPT."""
    shapes = {
        "wqkv": (layers, WIDTH, 3 * WIDTH),
        "wo": (layers, WIDTH, WIDTH),
        "w1": (layers, WIDTH, 4 * WIDTH),
        "w2": (layers, 4 * WIDTH, WIDTH),
    }
    stacks = {name: _normal(at, shape) for at, (name, shape) in enumerate(shapes.items())}
    gains = {name: np.ones((layers, WIDTH), "float32") for name in ("g1", "g2")}
    return {"emb": _normal(9, (VOCABULARY, WIDTH)), "layers": stacks | gains}


def tokens(batch: int = BATCH) -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCABULARY, (batch, LENGTH + 1)).astype("int32")


def norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled.astype(x.dtype) * gain


def layer(w: Tree, x: jax.Array, heads: int = HEADS) -> jax.Array:
    """A layer of a transformer."""
    b, s, d = x.shape
    q, k, v = (
        t.reshape(b, s, heads, d // heads).transpose(0, 2, 1, 3)
        for t in jnp.split(norm(x, w["g1"]) @ w["wqkv"], 3, -1)
    )
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / (d // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
    probabilities = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", probabilities, v)
    x = x + mixed.transpose(0, 2, 1, 3).reshape(b, s, d) @ w["wo"]
    return x + jax.nn.gelu(norm(x, w["g2"]) @ w["w1"]) @ w["w2"]


def head(p: Tree, x: jax.Array, tok: jax.Array) -> jax.Array:
    logits = jax.nn.log_softmax((x @ p["emb"].T).astype(jnp.float32))
    return -jnp.take_along_axis(logits, tok[:, 1:, None], -1).mean()


def embedded(p: Tree, tok: jax.Array) -> jax.Array:
    return p["emb"][tok[:, :-1]]


def plain(p: Tree, tok: jax.Array, body: Callable[..., jax.Array] = layer) -> jax.Array:
    x, _ = lax.scan(lambda x, w: (body(w, x), None), embedded(p, tok), p["layers"])
    return head(p, x, tok)


def checkpointed(p: Tree, tok: jax.Array) -> jax.Array:
    policy = jax.checkpoint_policies.nothing_saveable
    return plain(p, tok, jax.checkpoint(layer, policy=policy, prevent_cse=False))


def dots_kept(p: Tree, tok: jax.Array) -> jax.Array:
    policy = jax.checkpoint_policies.dots_saveable
    return plain(p, tok, jax.checkpoint(layer, policy=policy, prevent_cse=False))


def dropped(key: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def dropout_by_number(p: Tree, tok: jax.Array) -> jax.Array:
    key = jax.random.key(3)

    def body(carry: Any, w: Tree) -> Any:
        x, number = carry
        return (dropped(jax.random.fold_in(key, number), layer(w, x)), number + 1), None

    (x, _), _ = lax.scan(body, (embedded(p, tok), jnp.int32(0)), p["layers"])
    return head(p, x, tok)


def dropout_by_keys(p: Tree, tok: jax.Array) -> jax.Array:
    keys = jax.random.split(jax.random.key(3), p["layers"]["g1"].shape[0])
    x, _ = lax.scan(
        lambda x, wk: (dropped(wk[1], layer(wk[0], x)), None),
        embedded(p, tok),
        (p["layers"], keys),
    )
    return head(p, x, tok)


def dropout_by_chain(p: Tree, tok: jax.Array) -> jax.Array:
    """A key that is split in each layer, and carried."""

    def body(carry: Any, w: Tree) -> Any:
        x, key = carry
        key, own = jax.random.split(key)
        return (dropped(own, layer(w, x)), key), None

    (x, _), _ = lax.scan(body, (embedded(p, tok), jax.random.key(3)), p["layers"])
    return head(p, x, tok)


def dropout_in_checkpoint(p: Tree, tok: jax.Array) -> jax.Array:
    keys = jax.random.split(jax.random.key(3), p["layers"]["g1"].shape[0])

    @jax.checkpoint
    def body(x: jax.Array, wk: Any) -> Any:
        return dropped(wk[1], layer(wk[0], x)), None

    x, _ = lax.scan(body, embedded(p, tok), (p["layers"], keys))
    return head(p, x, tok)


def shared_weight(p: Tree, tok: jax.Array) -> jax.Array:
    def body(x: jax.Array, w: Tree) -> Any:
        return layer(w, x) * (1 + 0.1 * jnp.tanh(p["emb"][0])), None

    x, _ = lax.scan(body, embedded(p, tok), p["layers"])
    return head(p, x, tok)


def auxiliary_carried(p: Tree, tok: jax.Array) -> jax.Array:
    def body(carry: Any, w: Tree) -> Any:
        x, loss = carry
        x = layer(w, x)
        return (x, loss + (x**2).mean()), None

    (x, loss), _ = lax.scan(body, (embedded(p, tok), jnp.zeros(())), p["layers"])
    return head(p, x, tok) + 0.01 * loss


def auxiliary_stacked(p: Tree, tok: jax.Array) -> jax.Array:
    def body(x: jax.Array, w: Tree) -> Any:
        x = layer(w, x)
        return x, (x**2).mean()

    x, losses = lax.scan(body, embedded(p, tok), p["layers"])
    return head(p, x, tok) + 0.01 * losses.sum()


def largest_carried(p: Tree, tok: jax.Array) -> jax.Array:
    """The largest activation of all layers: a maximum, which is carried and no sum."""

    def body(carry: Any, w: Tree) -> Any:
        x, largest = carry
        x = layer(w, x)
        return (x, jnp.maximum(largest, lax.stop_gradient(x.max()))), None

    (x, largest), _ = lax.scan(body, (embedded(p, tok), jnp.float32(-1e9)), p["layers"])
    return head(p, x, tok) + 0.01 * largest


def weight_norms(p: Tree, tok: jax.Array) -> jax.Array:
    """What does not depend on the batch at all, carried and stacked."""

    def body(carry: Any, w: Tree) -> Any:
        x, total = carry
        squares = (w["w1"] ** 2).sum()
        return (layer(w, x), total + squares), squares

    (x, total), stacked = lax.scan(body, (embedded(p, tok), jnp.zeros(())), p["layers"])
    return head(p, x, tok) + 1e-3 * total + 1e-3 * (stacked**2).sum()


def encoder(p: Tree, tok: jax.Array) -> jax.Array:
    """Layers that all read one more activation of the batch, whose gradient they add up."""
    memory = jnp.tanh(embedded(p, tok) * 3)

    def body(x: jax.Array, w: Tree) -> Any:
        return layer(w, x) + 0.1 * jnp.tanh(memory @ w["wo"]), None

    x, _ = lax.scan(body, embedded(p, tok), p["layers"])
    return head(p, x, tok)


def layers_collected(p: Tree, tok: jax.Array) -> jax.Array:
    """Every layer's output is returned, for losses on all of them."""

    def body(x: jax.Array, w: Tree) -> Any:
        x = layer(w, x)
        return x, x

    x, every = lax.scan(body, embedded(p, tok), p["layers"])
    return head(p, x, tok) + 0.1 * jnp.tanh(every).mean()


def mixture(p: Tree, tok: jax.Array) -> jax.Array:
    """Two experts a token by soft routing, with a loss that balances them."""

    def body(carry: Any, w: Tree) -> Any:
        x, loss = carry
        gates = jax.nn.softmax(x @ w["wo"][:, :4])
        experts = w["w1"].reshape(WIDTH, 4, WIDTH)
        mixed = jnp.einsum("bse,bsd,dek->bsk", gates, x, experts)
        return (x + jnp.tanh(mixed), loss + (gates.mean((0, 1)) * 4).sum()), None

    (x, loss), _ = lax.scan(body, (embedded(p, tok), jnp.zeros(())), p["layers"])
    return head(p, x, tok) + 0.01 * loss


def batch_norm(p: Tree, tok: jax.Array) -> jax.Array:
    def body(x: jax.Array, w: Tree) -> Any:
        x = layer(w, x)
        return x - x.mean(0, keepdims=True), None

    x, _ = lax.scan(body, embedded(p, tok), p["layers"])
    return head(p, x, tok)


def unrolled(p: Tree, tok: jax.Array) -> jax.Array:
    x = embedded(p, tok)
    for number in range(p["layers"]["g1"].shape[0]):
        x = layer(jax.tree.map(lambda w, at=number: w[at], p["layers"]), x)
    return head(p, x, tok)


def unrolled_by_two(p: Tree, tok: jax.Array) -> jax.Array:
    x, _ = lax.scan(lambda x, w: (layer(w, x), None), embedded(p, tok), p["layers"], unroll=2)
    return head(p, x, tok)


def momentum(p: Tree, m: Tree, tok: jax.Array) -> Any:
    value, g = jax.value_and_grad(plain)(p, tok)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    return value, jax.tree.map(lambda p, m: p - 1e-2 * m, p, m), m


def forward(p: Tree, tok: jax.Array) -> jax.Array:
    x, _ = lax.scan(lambda x, w: (layer(w, x), None), embedded(p, tok), p["layers"])
    return x


def by_layers(path: Any, _: Any) -> PartitionSpec:
    return PartitionSpec("stage") if "layers" in names_of(path) else PartitionSpec()


def by_layers_and_data(path: Any, value: Any) -> PartitionSpec:
    if "layers" in names_of(path):
        return PartitionSpec("stage")
    return PartitionSpec("data") if value.dtype == jnp.int32 else PartitionSpec()


def fully_sharded(path: Any, value: Any) -> PartitionSpec:
    """Layers over `stage`, and each weight over the devices of the batch."""
    if "layers" in names_of(path):
        return PartitionSpec("stage", "data")
    return PartitionSpec("data")


_TENSOR = {
    "wqkv": PartitionSpec("stage", None, "tensor"),
    "w1": PartitionSpec("stage", None, "tensor"),
    "wo": PartitionSpec("stage", "tensor"),
    "w2": PartitionSpec("stage", "tensor"),
}


def by_layers_and_tensor(path: Any, value: Any) -> PartitionSpec:
    names = names_of(path)
    if "layers" in names:
        return _TENSOR.get(names[-1], PartitionSpec("stage"))
    return PartitionSpec()


def on_three_axes(path: Any, value: Any) -> PartitionSpec:
    if "layers" in names_of(path):
        return by_layers_and_tensor(path, value)
    return by_layers_and_data(path, value)


def names_of(path: Any) -> list[str]:
    return [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]


def placed(tree: Tree, mesh: jax.sharding.Mesh, rule: Callable[[Any, Any], PartitionSpec]) -> Tree:
    """The shardings of arguments."""
    return jax.tree_util.tree_map_with_path(
        lambda path, value: NamedSharding(mesh, rule(path, value)), tree
    )


def worst(wanted: Tree, got: Tree) -> float:
    """The largest difference of a result, relative to its largest element."""
    pairs = zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True)
    return max(
        float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))
        for a, b in ((np.asarray(a, "float64"), np.asarray(b, "float64")) for a, b in pairs)
    )


GRADIENTS: Mapping[str, Callable[[Tree, jax.Array], jax.Array]] = {
    "a GPT": plain,
    "nothing_saveable": checkpointed,
    "dots_saveable": dots_kept,
    "dropout, key by the layer's number": dropout_by_number,
    "dropout, keys scanned": dropout_by_keys,
    "dropout, a key split in each layer": dropout_by_chain,
    "dropout in a checkpoint": dropout_in_checkpoint,
    "a weight of all layers": shared_weight,
    "auxiliary loss carried": auxiliary_carried,
    "auxiliary loss stacked": auxiliary_stacked,
    "a maximum carried": largest_carried,
    "norms of weights": weight_norms,
    "an encoder's output": encoder,
    "outputs of all layers": layers_collected,
    "mixture of experts": mixture,
}
"""Losses whose gradients are taken."""
