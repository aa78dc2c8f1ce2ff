"""Random steps that scan over layers: bodies, carries, stacks, directions, meshes.

Each is drawn from a number alone. What a layer may hold: products, sums over features, gates, data
of the layer and of the example, a number or a key that is carried, dropout, sums and maxima over
the batch, a weight that all layers read, outputs of every layer, a branch by the layer's number, an
inner loop, a checkpoint, carries of integers, booleans and bfloat16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

WIDTH = 8


@dataclasses.dataclass(frozen=True)
class RandomStep:
    """A step.

    Attributes:
      function: of weights and data.
      arguments: these.
      sizes: of the mesh's axes by name.
      spec: hloom's.
      parts: what its layers hold.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    sizes: dict[str, int]
    spec: str
    parts: tuple[str, ...]


Layer = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]
"""Changes the carry, by name, of the layer's weights and of what all layers read."""


def _product(c: dict[str, Any], w: dict[str, Any], _: dict[str, Any]) -> None:
    c["x"] = c["x"] + jnp.tanh(c["x"] @ w["a"]) @ w["b"]


def _gate(c: dict[str, Any], w: dict[str, Any], _: dict[str, Any]) -> None:
    c["x"] = c["x"] * jax.nn.sigmoid(c["x"] * w["g"]) + w["g"]


def _normalized(c: dict[str, Any], w: dict[str, Any], _: dict[str, Any]) -> None:
    x = c["x"]
    c["x"] = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)


def _mixed(c: dict[str, Any], w: dict[str, Any], _: dict[str, Any]) -> None:
    scores = jax.nn.softmax(jnp.einsum("bsd,btd->bst", c["x"], c["x"]))
    c["x"] = c["x"] + jnp.einsum("bst,btd->bsd", scores, c["x"] @ w["a"][:, :WIDTH])


def _masked(c: dict[str, Any], _: dict[str, Any], all_: dict[str, Any]) -> None:
    c["x"] = jnp.where(all_["mask"][:, :, None], c["x"], c["x"] * 0.5)


def _of_example(c: dict[str, Any], w: dict[str, Any], all_: dict[str, Any]) -> None:
    c["x"] = c["x"] + 0.1 * jnp.tanh(all_["memory"] @ w["a"][:, :WIDTH])


def _scanned_data(c: dict[str, Any], w: dict[str, Any], _: dict[str, Any]) -> None:
    c["x"] = c["x"] + 0.1 * w["noise"]


def _shared(c: dict[str, Any], _: dict[str, Any], all_: dict[str, Any]) -> None:
    c["x"] = c["x"] + 0.1 * jnp.tanh(c["x"] @ all_["shared"])


def _numbered(c: dict[str, Any], _: dict[str, Any], all_: dict[str, Any]) -> None:
    key = jax.random.fold_in(jax.random.key(5), c["number"])
    c["x"] = jnp.where(jax.random.bernoulli(key, 0.8, c["x"].shape), c["x"] / 0.8, 0.0)


def _branch(c: dict[str, Any], w: dict[str, Any], _: dict[str, Any]) -> None:
    c["x"] = lax.cond(
        c["number"] % 2 == 0, lambda x: x + 0.1 * x @ w["a"][:, :WIDTH], lambda x: x * 0.9, c["x"]
    )


def _inner(c: dict[str, Any], w: dict[str, Any], _: dict[str, Any]) -> None:
    c["x"] = lax.scan(
        lambda x, _: (x + 0.1 * jnp.tanh(x @ w["a"][:, :WIDTH]), None), c["x"], None, length=2
    )[0]


def _summed(c: dict[str, Any], _: dict[str, Any], __: dict[str, Any]) -> None:
    c["loss"] = c["loss"] + (c["x"] ** 2).mean()


def _largest(c: dict[str, Any], _: dict[str, Any], __: dict[str, Any]) -> None:
    c["largest"] = jnp.maximum(c["largest"], lax.stop_gradient(jnp.abs(c["x"]).max()))


def _counted(c: dict[str, Any], _: dict[str, Any], __: dict[str, Any]) -> None:
    above = lax.stop_gradient(c["x"]) > 0
    c["count"] = c["count"] + above.sum(-1).astype(jnp.int32)
    c["seen"] = c["seen"] | above.any(-1)


def _narrow(c: dict[str, Any], _: dict[str, Any], __: dict[str, Any]) -> None:
    c["narrow"] = jnp.where(c["x"] > 0, c["narrow"] + 1, c["narrow"]).astype(jnp.bfloat16)


def _alternating(c: dict[str, Any], _: dict[str, Any], __: dict[str, Any]) -> None:
    """A sum that is not only added to: it travels with its microbatch."""
    c["sum"] = c["x"].mean() - c["sum"]


LAYERS: dict[str, Layer] = {
    "product": _product,
    "gate": _gate,
    "normalized": _normalized,
    "mixed": _mixed,
    "masked": _masked,
    "of example": _of_example,
    "scanned data": _scanned_data,
    "shared": _shared,
    "numbered": _numbered,
    "branch": _branch,
    "inner": _inner,
    "summed": _summed,
    "largest": _largest,
    "counted": _counted,
    "narrow": _narrow,
    "alternating": _alternating,
}


def drawn(number: int) -> RandomStep:
    """The step of a number."""
    rng = np.random.default_rng(number)
    names = [str(each) for each in rng.choice(list(LAYERS), rng.integers(1, 6), replace=False)]
    parts = ["product", *(each for each in names if each != "product")]
    parts = [str(each) for each in rng.permutation(parts)]
    sizes = [{"stage": 4}, {"stage": 2}, {"data": 2, "stage": 2}, {"stage": 2, "tensor": 2}][
        rng.integers(4)
    ]
    layers, batch, length = int(rng.choice([4, 8])), 8, 2
    stages = sizes["stage"]
    repeats = int(rng.choice([each for each in (1, 2, 4) if layers % (stages * each) == 0]))
    on_device = batch // sizes.get("data", 1)
    least = stages if repeats > 1 else 2
    microbatches = int(rng.choice([n for n in (2, 4, 8) if least <= n and on_device % n == 0]))
    reverse, collects, checkpointed, forward = (bool(rng.integers(2)) for _ in range(4))

    def values(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.3).astype("float32")

    weights = {
        "layers": {
            "a": values(layers, WIDTH, 2 * WIDTH),
            "b": values(layers, 2 * WIDTH, WIDTH),
            "g": values(layers, WIDTH),
        },
        "shared": values(WIDTH, WIDTH),
    }
    data = {
        "x": values(batch, length, WIDTH),
        "memory": values(batch, length, WIDTH),
        "mask": rng.integers(0, 2, (batch, length)).astype(bool),
        "noise": values(layers, batch, length, WIDTH),
    }

    def loss(p: Any, d: Any) -> tuple[jax.Array, Any]:
        everywhere = {"mask": d["mask"], "memory": d["memory"], "shared": p["shared"]}

        def body(c: dict[str, Any], w: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            c = dict(c)
            for each in parts:
                LAYERS[each](c, w, everywhere)
            if "number" in c:
                c["number"] = c["number"] + 1
            return c, (jnp.tanh(c["x"]) if collects else None)

        start = {"x": d["x"]}
        extra = {
            "number": jnp.int32(0),
            "loss": jnp.zeros(()),
            "largest": jnp.float32(-1.0),
            "count": jnp.zeros((batch, length), jnp.int32),
            "seen": jnp.zeros((batch, length), bool),
            "narrow": jnp.zeros_like(d["x"], jnp.bfloat16),
            "sum": jnp.zeros(()),
        }
        wanted = {
            "numbered": ["number"],
            "branch": ["number"],
            "summed": ["loss"],
            "largest": ["largest"],
            "counted": ["count", "seen"],
            "narrow": ["narrow"],
            "alternating": ["sum"],
        }
        for each in parts:
            start |= {name: extra[name] for name in wanted.get(each, ())}
        run = jax.checkpoint(body) if checkpointed else body
        stacks = p["layers"] | ({"noise": d["noise"]} if "scanned data" in parts else {})
        end, every = lax.scan(run, start, stacks, reverse=reverse)
        total = (end["x"] ** 2).mean() + end.get("loss", 0.0) + 0.1 * end.get("sum", 0.0)
        total = total + 0.1 * end.get("largest", 0.0) + (0.0 if every is None else every.mean())
        rest = {name: end[name] for name in ("count", "seen", "narrow") if name in end}
        return total, (rest, end["x"] if forward else None)

    function = loss if forward else jax.value_and_grad(loss, has_aux=True)
    options = f"microbatches={microbatches}" + (f" repeats={repeats}" if repeats > 1 else "")
    return RandomStep(function, (weights, data), sizes, f"pipeline{{{options}}}", tuple(parts))


def sharded(path: Any, value: Any) -> PartitionSpec:
    """How a mesh of data and stages has the arguments."""
    names = [str(getattr(key, "key", "")) for key in path]
    if "layers" in names:
        return PartitionSpec("stage")
    if names[-1] == "noise":
        return PartitionSpec(None, "data")
    return PartitionSpec() if names[-1] == "shared" else PartitionSpec("data")


def rule_of(sizes: dict[str, int]) -> Callable[[Any, Any], PartitionSpec]:
    """The sharding of arguments on a mesh of these axes."""

    def rule(path: Any, value: Any) -> PartitionSpec:
        kept = [axis if axis in sizes else None for axis in sharded(path, value)]
        names = [str(getattr(key, "key", "")) for key in path]
        if "tensor" in sizes and names[-1] == "a":
            return PartitionSpec("stage", None, "tensor")
        return PartitionSpec(*kept)

    return rule
