"""A Llama-style model over a mesh of data and model axes: FSDP, tensor parallelism, or both.

As Flax and MaxText shard it: a spec for each parameter, and `with_sharding_constraint` on the
activations between products. Layers are scanned; parameters are float32, used as bfloat16.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.programs.common import Parameters, checkpoint_with, cross_entropy

DATA, MODEL = "data", "model"
MESHES = {"fsdp": (4, 1), "tensor": (1, 4), "both": (2, 2)}
"""By kind of parallelism how many devices lie along the data axis and along the model axis."""

_STREAM = (DATA, None, None)


@dataclasses.dataclass(frozen=True)
class ShardedDecoder:
    """The program.

    Attributes:
      mesh: of the axes DATA and MODEL.
      policy: a name of `jax.checkpoint_policies`, put on each layer; None for no checkpoint.
    """

    mesh: Mesh
    policy: str | None = None
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
        sharding = NamedSharding(self.mesh, PartitionSpec(DATA))
        return jax.ShapeDtypeStruct((self.batch, self.sequence), "int32", sharding=sharding)

    def parameters(self) -> Parameters:
        """The shapes of the parameters: split along both axes of the mesh where they have two."""
        width, hidden, heads = self.width, self.hidden, self.heads
        head = width // heads

        def shaped(axes: tuple[str | None, ...], *shape: int) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(self.mesh, PartitionSpec(*axes))
            return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

        def stacked(axes: tuple[str | None, ...], *shape: int) -> jax.ShapeDtypeStruct:
            return shaped((None, *axes), self.layers, *shape)

        return {
            "embedding": shaped((MODEL, DATA), self.vocabulary, width),
            "out": shaped((DATA, MODEL), width, self.vocabulary),
            "gain": shaped((None,), width),
            "layers": {
                "attention_gain": stacked((None,), width),
                "perceptron_gain": stacked((None,), width),
                "query_key_value": stacked((DATA, None, MODEL, None), width, 3, heads, head),
                "attention_out": stacked((MODEL, None, DATA), heads, head, width),
                "gate": stacked((DATA, MODEL), width, hidden),
                "up": stacked((DATA, MODEL), width, hidden),
                "down": stacked((MODEL, DATA), hidden, width),
            },
        }

    def loss(self, parameters: Parameters, tokens: jax.Array) -> jax.Array:
        """The mean cross-entropy of the next token."""
        # In a scan nothing can merge the copy back, and the barrier would only cost.
        layer = checkpoint_with(self.policy, prevent_cse=False)(self._layer)
        cast = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), parameters)
        stream = self._held(cast["embedding"][tokens], *_STREAM)
        stream, _ = jax.lax.scan(lambda c, p: (layer(c, p), None), stream, cast["layers"])
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
        inner = jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])
        inner = self._held(inner, DATA, None, MODEL)
        return self._held(stream + self._held(inner @ p["down"], *_STREAM), *_STREAM)

    def _held(self, x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*axes)))


def _normalize(x: jax.Array, gain: jax.Array) -> jax.Array:
    wide = x.astype("float32")
    scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype) * gain
