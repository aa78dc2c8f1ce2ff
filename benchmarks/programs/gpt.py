"""A GPT written plainly in JAX, its layers unrolled or in a scan: `value_and_grad` of its loss.

12 layers, width 768, 8 heads, vocabulary 8192, batch 8, sequence 1024, bfloat16, plain attention.
Shapes only: it is made to be compiled, not run.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import policy_named

Parameters = dict[str, Any]
POLICIES = ("dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable")


@dataclasses.dataclass(frozen=True)
class Gpt:
    """The program.

    Attributes:
      scanned: the layers are a `lax.scan` over stacked parameters, else unrolled.
      policy: a name of `jax.checkpoint_policies`, put on each block; None for no checkpoint.
      softmax_dtype: what the attention's softmax is computed in.
      gains: the norms have learned gains.
      fused: the attention is JAX's call of cuDNN's.
      held: a sharding that activations of [batch, sequence, width] are held to; None for none.
    """

    scanned: bool
    policy: str | None = None
    softmax_dtype: str = "float32"
    gains: bool = False
    fused: bool = False
    held: Any = None
    layers: int = 12
    width: int = 768
    heads: int = 8
    vocabulary: int = 8192
    batch: int = 8
    sequence: int = 1024

    def lower(self, sharding: Any = None, *, data_sharding: Any = None) -> Any:
        """The gradient step lowered for the default device, or the ones that a sharding names.

        The tokens lie as `data_sharding` says, where it is given.
        """
        tokens = self.tokens(sharding if data_sharding is None else data_sharding)
        return jax.jit(jax.value_and_grad(self.loss)).lower(self.parameters(sharding), tokens)

    def tokens(self, sharding: Any = None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.batch, self.sequence), "int32", sharding=sharding)

    def parameters(self, sharding: Any = None) -> Parameters:
        """The shapes of the parameters, on the devices that a sharding names."""

        def shaped(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=sharding)

        stacked = (self.layers,) if self.scanned else ()
        layer = {name: shaped(stacked + shape) for name, shape in self._layer_shapes().items()}
        parameters: Parameters = {
            "embedding": shaped((self.vocabulary, self.width)),
            "position": shaped((self.sequence, self.width)),
            "layers": layer if self.scanned else [layer] * self.layers,
        }
        if self.gains:
            parameters["gain"] = shaped((self.width,))
        return parameters

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        width = self.width
        gains = {"attention_gain": (width,), "perceptron_gain": (width,)} if self.gains else {}
        return gains | {
            "query_key_value": (width, 3 * width),
            "attention_out": (width, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }

    def loss(self, parameters: Parameters, tokens: jax.Array) -> jax.Array:
        """The mean cross-entropy of the next token."""
        stream = self._hold(parameters["embedding"][tokens] + parameters["position"])
        stream = self.stage(parameters["layers"], stream)
        logits = _normalize(stream, parameters.get("gain")) @ parameters["embedding"].T
        log_probabilities = jax.nn.log_softmax(logits.astype("float32"))
        targets = jnp.roll(tokens, -1, axis=1)
        return -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1).mean()

    def stage(self, layers: Any, stream: jax.Array) -> jax.Array:
        """The layers alone, as a stage in the middle of a pipeline has them."""
        block = self._block
        if self.policy is not None:
            # In a scan nothing can merge the copy back, and the barrier would only cost.
            block = jax.checkpoint(
                self._block,
                policy=policy_named(self.policy),
                prevent_cse=not self.scanned,
            )
        if self.scanned:
            stream, _ = jax.lax.scan(
                lambda carry, layer: (block(carry, layer), None), stream, layers
            )
        else:
            for layer in layers:
                stream = block(stream, layer)
        return stream

    def _block(self, stream: jax.Array, layer: Parameters) -> jax.Array:
        normed = _normalize(stream, layer.get("attention_gain"))
        projected = self._hold(normed @ layer["query_key_value"])
        heads = projected.reshape(self.batch, self.sequence, 3, self.heads, -1)
        if self.fused:
            query, key, value = heads.transpose(2, 0, 1, 3, 4)
            mixed = jax.nn.dot_product_attention(
                query, key, value, is_causal=True, implementation="cudnn"
            )
        else:
            mixed = self._mixed(*heads.transpose(2, 0, 3, 1, 4)).transpose(0, 2, 1, 3)
        stream = self._hold(
            stream + self._hold(mixed.reshape(stream.shape)) @ layer["attention_out"]
        )
        normed = _normalize(stream, layer.get("perceptron_gain"))
        return self._hold(stream + jax.nn.gelu(self._hold(normed @ layer["up"])) @ layer["down"])

    def _mixed(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """Attention of [batch, heads, sequence, elements], written out."""
        scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
        causal = jnp.tril(jnp.ones((self.sequence, self.sequence), bool))
        masked = jnp.where(causal, scores, -1e9).astype(self.softmax_dtype)
        return jax.nn.softmax(masked).astype(value.dtype) @ value

    def _hold(self, activations: jax.Array) -> jax.Array:
        if self.held is None:
            return activations
        return jax.lax.with_sharding_constraint(activations, self.held)


def _normalize(stream: jax.Array, gain: jax.Array | None) -> jax.Array:
    centered = stream - stream.mean(-1, keepdims=True)
    normed = centered * jax.lax.rsqrt(stream.var(-1, keepdims=True) + 1e-5)
    return normed if gain is None else normed * gain
