"""A decoder's training step in plain JAX, for any batch and sequence: 1.1 G parameters and AdamW.

Layers in a scan, attention with its scores written out, its heads in groups or not, SwiGLU,
float32 parameters used as bfloat16. Shapes only: it is made to be compiled, not run.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Parameters, cross_entropy, shaped

_RATE, _DECAY, _MEAN, _SQUARE = 3e-4, 0.1, 0.9, 0.95


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The model's sizes; those of the defaults make 1.1 G parameters.

    `groups` is how many heads keys and values have.
    """

    layers: int = 19
    width: int = 2048
    heads: int = 32
    groups: int = 32
    hidden: int = 5632
    vocabulary: int = 32_000

    def step(self) -> Any:
        """The jitted step: (state, tokens) to (state, loss), its state donated."""
        return jax.jit(self.train_step, donate_argnums=0)

    def arguments(self, batch: int, sequence: int) -> tuple[Any, jax.ShapeDtypeStruct]:
        """The shapes of state and tokens."""
        parameters = self._parameters()
        state = {"parameters": parameters, "mean": parameters, "square": parameters}
        return state, shaped(batch, sequence, dtype="int32")

    def _parameters(self) -> Parameters:
        head = self.width // self.heads
        layers = {
            "attention_gain": (self.width,),
            "perceptron_gain": (self.width,),
            "query": (self.width, self.width),
            "key": (self.width, self.groups * head),
            "value": (self.width, self.groups * head),
            "attention_out": (self.width, self.width),
            "gate": (self.width, self.hidden),
            "up": (self.width, self.hidden),
            "down": (self.hidden, self.width),
        }
        return {
            "embedding": shaped(self.vocabulary, self.width),
            "out": shaped(self.width, self.vocabulary),
            "gain": shaped(self.width),
            "layers": {name: shaped(self.layers, *shape) for name, shape in layers.items()},
        }

    def train_step(self, state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        """A step of AdamW."""
        loss, gradients = jax.value_and_grad(self._loss)(state["parameters"], tokens)
        mean = jax.tree.map(lambda m, g: _MEAN * m + (1 - _MEAN) * g, state["mean"], gradients)
        square = jax.tree.map(
            lambda s, g: _SQUARE * s + (1 - _SQUARE) * g * g, state["square"], gradients
        )
        parameters = jax.tree.map(
            lambda p, m, s: p - _RATE * (m / (jnp.sqrt(s) + 1e-8) + _DECAY * p),
            state["parameters"],
            mean,
            square,
        )
        return {"parameters": parameters, "mean": mean, "square": square}, loss

    def _loss(self, parameters: Parameters, tokens: jax.Array) -> jax.Array:
        cast = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), parameters)
        stream, _ = jax.lax.scan(
            lambda carry, layer: (self._layer(carry, layer), None),
            cast["embedding"][tokens],
            cast["layers"],
        )
        logits = _normalize(stream, cast["gain"]) @ cast["out"]
        return cross_entropy(logits, jnp.roll(tokens, -1, axis=1))

    def _layer(self, stream: jax.Array, p: Parameters) -> jax.Array:
        batch, sequence, _ = stream.shape
        head, shared = self.width // self.heads, self.heads // self.groups
        normed = _normalize(stream, p["attention_gain"])
        query = (normed @ p["query"]).reshape(batch, sequence, self.groups, shared, head)
        key = (normed @ p["key"]).reshape(batch, sequence, self.groups, head)
        value = (normed @ p["value"]).reshape(batch, sequence, self.groups, head)
        scores = jnp.einsum("btkgd,bskd->bkgts", query, key).astype("float32") / head**0.5
        causal = jnp.arange(sequence)[:, None] >= jnp.arange(sequence)
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(stream.dtype)
        mixed = jnp.einsum("bkgts,bskd->btkgd", weights, value).reshape(stream.shape)
        stream = stream + mixed @ p["attention_out"]
        normed = _normalize(stream, p["perceptron_gain"])
        return stream + (jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])) @ p["down"]


def _normalize(x: jax.Array, gain: jax.Array) -> jax.Array:
    wide = x.astype("float32")
    scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype) * gain
