"""A Llama-style model over a mesh of data and model axes: FSDP, tensor parallelism, or both.

As Flax and MaxText shard it: a spec for each parameter, and `with_sharding_constraint` on the
activations between products. Layers are scanned, or not; parameters are float32, used as bfloat16.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.programs.common import Parameters, checkpoint_with, cross_entropy

DATA, MODEL = "data", "model"
MESHES = {"fsdp": (4, 1), "tensor": (1, 4), "both": (2, 2)}
"""By kind of parallelism how many devices lie along the data axis and along the model axis."""

Axes = str | tuple[str, ...] | None

_STREAM = (DATA, None, None)
_EXPERTS = (MODEL, DATA, None, None)


@dataclasses.dataclass(frozen=True)
class ShardedDecoder:
    """The program.

    Attributes:
      mesh: of the axes DATA and MODEL.
      policy: a name of `jax.checkpoint_policies`, put on each layer; None for no checkpoint.
      scanned: whether the layers are a scan, or lie behind one another.
      data, model: the axes that take the place of DATA and of MODEL; None where nothing is split.
    """

    mesh: Mesh
    policy: str | None = None
    scanned: bool = True
    data: Axes = DATA
    model: Axes = MODEL
    layers: int = 4
    width: int = 256
    heads: int = 8
    hidden: int = 704
    vocabulary: int = 1024
    batch: int = 8
    sequence: int = 256

    def lower(self) -> Any:
        """`value_and_grad` of the loss, lowered for the mesh; gradients lie as parameters do."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.parameters())
        loss_sharding = NamedSharding(self.mesh, PartitionSpec())
        step = jax.jit(jax.value_and_grad(self.loss), out_shardings=(loss_sharding, shardings))
        return step.lower(self.parameters(), self.tokens())

    def tokens(self) -> jax.ShapeDtypeStruct:
        sharding = self._sharding(DATA)
        return jax.ShapeDtypeStruct((self.batch, self.sequence), "int32", sharding=sharding)

    def parameters(self) -> Parameters:
        """The shapes of the parameters: split along both axes of the mesh where they have two."""
        width, heads, stacked = self.width, self.heads, self._stacked
        head = width // heads
        return {
            "embedding": self._shaped((MODEL, DATA), self.vocabulary, width),
            "out": self._shaped((DATA, MODEL), width, self.vocabulary),
            "gain": self._shaped((None,), width),
            "layers": {
                "attention_gain": stacked((None,), width),
                "perceptron_gain": stacked((None,), width),
                "query_key_value": stacked((DATA, None, MODEL, None), width, 3, heads, head),
                "attention_out": stacked((MODEL, None, DATA), heads, head, width),
                **self._perceptron_parameters(),
            },
        }

    def _perceptron_parameters(self) -> Parameters:
        return {
            "gate": self._stacked((DATA, MODEL), self.width, self.hidden),
            "up": self._stacked((DATA, MODEL), self.width, self.hidden),
            "down": self._stacked((MODEL, DATA), self.hidden, self.width),
        }

    def _shaped(self, axes: tuple[str | None, ...], *shape: int) -> jax.ShapeDtypeStruct:
        sharding = self._sharding(*axes)
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    def _stacked(self, axes: tuple[str | None, ...], *shape: int) -> jax.ShapeDtypeStruct:
        return self._shaped((None, *axes), self.layers, *shape)

    def loss(self, parameters: Parameters, tokens: jax.Array) -> jax.Array:
        """The mean cross-entropy of the next token."""
        # In a scan nothing can merge the copy back, and the barrier would only cost.
        layer = checkpoint_with(self.policy, prevent_cse=not self.scanned)(self._layer)
        cast = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), parameters)
        stream = self._held(cast["embedding"][tokens], *_STREAM)
        if self.scanned:
            stream, _ = jax.lax.scan(lambda c, p: (layer(c, p), None), stream, cast["layers"])
        else:
            for number in range(self.layers):
                own = jax.tree.map(operator.itemgetter(number), cast["layers"])
                stream = layer(stream, own)
        logits = _normalize(stream, cast["gain"]) @ cast["out"]
        logits = self._held(logits, DATA, None, MODEL)
        return cross_entropy(logits, jnp.roll(tokens, -1, axis=1))

    def _layer(self, stream: jax.Array, p: Parameters) -> jax.Array:
        normed = self._held(_normalize(stream, p["attention_gain"]), *_STREAM)
        projected = jnp.einsum("btd,dchk->cbthk", normed, p["query_key_value"])
        query, key, value = self._held(projected, None, DATA, None, MODEL, None)
        scores = jnp.einsum("bthk,bshk->bhts", query, key).astype("float32")
        positions = jnp.arange(self.sequence)
        causal = positions[:, None] >= positions
        scaled = scores / (self.width // self.heads) ** 0.5
        weights = jax.nn.softmax(jnp.where(causal, scaled, -1e30)).astype(stream.dtype)
        mixed = self._held(jnp.einsum("bhts,bshk->bthk", weights, value), DATA, None, MODEL, None)
        attended = jnp.einsum("bthk,hkd->btd", mixed, p["attention_out"])
        stream = self._held(stream + self._held(attended, *_STREAM), *_STREAM)
        normed = self._held(_normalize(stream, p["perceptron_gain"]), *_STREAM)
        return self._held(stream + self._held(self._perceptron(normed, p), *_STREAM), *_STREAM)

    def _perceptron(self, normed: jax.Array, p: Parameters) -> jax.Array:
        inner = jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])
        return self._held(inner, DATA, None, MODEL) @ p["down"]

    def _held(self, x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, self._sharding(*axes))

    def _sharding(self, *axes: str | None) -> NamedSharding:
        split = {DATA: self.data, MODEL: self.model, None: None}
        return NamedSharding(self.mesh, PartitionSpec(*(split[axis] for axis in axes)))


def _normalize(x: jax.Array, gain: jax.Array) -> jax.Array:
    wide = x.astype("float32")
    scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype) * gain


@dataclasses.dataclass(frozen=True)
class ShardedMixture(ShardedDecoder):
    """The same with a mixture of experts for the perceptron, as MaxText's dropping MoE does it.

    Each example's tokens go to the first places of their ``chosen`` experts by a product with a
    one-hot mask, and come back by another; what an expert has no place for is dropped. The experts
    lie along MODEL; their weights, split along DATA too, are gathered by a constraint.

    Attributes:
      experts, chosen: in all, and of each token.
      capacity: places of an expert, as a multiple of an equal share.
    """

    hidden: int = 512
    experts: int = 4
    chosen: int = 2
    capacity: float = 1.25

    def _perceptron_parameters(self) -> Parameters:
        width, hidden, experts = self.width, self.hidden, self.experts
        return {
            "router": self._stacked((DATA, None), width, experts),
            "gate": self._stacked((MODEL, DATA, None), experts, width, hidden),
            "up": self._stacked((MODEL, DATA, None), experts, width, hidden),
            "down": self._stacked((MODEL, None, DATA), experts, hidden, width),
        }

    def _perceptron(self, normed: jax.Array, p: Parameters) -> jax.Array:
        best, chosen = jax.lax.top_k(normed @ p["router"], self.chosen)
        best = jax.nn.softmax(best.astype("float32")).astype(normed.dtype)
        places = int(self.sequence * self.capacity * self.chosen / self.experts)
        wanted = jax.nn.one_hot(chosen, self.experts, dtype="int32")
        rank = jnp.cumsum(wanted.reshape(len(normed), -1, self.experts), axis=1)
        rank = rank.reshape(wanted.shape) * wanted - 1
        # A rank of -1, or beyond the places, is in no column.
        placed = jax.nn.one_hot(rank, places, dtype=normed.dtype)
        combine = self._held((placed * best[..., None, None]).sum(2), DATA, None, None, None)
        dispatch = self._held(placed.sum(2), DATA, None, None, None)
        gate, up, down = (self._held(p[name], MODEL, None, None) for name in ("gate", "up", "down"))
        given = self._held(jnp.einsum("btd,btec->ebcd", normed, dispatch), *_EXPERTS)
        inner = jax.nn.silu(self._held(jnp.einsum("ebcd,edf->ebcf", given, gate), *_EXPERTS))
        inner = inner * self._held(jnp.einsum("ebcd,edf->ebcf", given, up), *_EXPERTS)
        made = self._held(jnp.einsum("ebcf,efd->ebcd", inner, down), *_EXPERTS)
        return jnp.einsum("ebcd,btec->btd", made, combine)
