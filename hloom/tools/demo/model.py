"""A GPT in Flax NNX: pre-norm blocks, causal attention, layers stacked in one scan.

Nothing in it knows of hloom, and nothing is annotated with `jax.checkpoint`.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

BYTE_VALUES = 256


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The model and its batch.

    Attributes:
      layers, width, heads: blocks, features of the residual stream, attention heads.
      batch, sequence: sequences in a step, and tokens in a sequence.
      dropout: the share of features dropped on each residual branch, from 0 up to, not with, 1.

    Raises ValueError where the heads do not divide the width, or a number is out of range.
    """

    layers: int = 6
    width: int = 192
    heads: int = 6
    batch: int = 8
    sequence: int = 256
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "batch", "sequence"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"heads divide the width: {self.heads} do not divide {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is at least 0 and below 1, got {self.dropout}")


class Block(nnx.Module):  # type: ignore[misc] # flax has no type hints for its base class
    """Causal self-attention and a two-layer perceptron, each on a residual branch.

    Takes and gives `[batch, sequence, width]`.
    """

    def __init__(self, sizes: Sizes, *, rngs: nnx.Rngs) -> None:
        width = sizes.width
        self.heads = sizes.heads
        self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
        self.query_key_value = nnx.Linear(width, 3 * width, rngs=rngs)
        self.attention_out = nnx.Linear(width, width, rngs=rngs)
        self.perceptron_norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(sizes.dropout, rngs=rngs)

    def __call__(self, stream: jax.Array) -> jax.Array:
        stream = stream + self.dropout(self._attend(self.attention_norm(stream)))
        hidden = nnx.gelu(self.up(self.perceptron_norm(stream)))
        return stream + self.dropout(self.down(hidden))

    def _attend(self, normed: jax.Array) -> jax.Array:
        batch, sequence, width = normed.shape
        heads = self.query_key_value(normed).reshape(batch, sequence, 3, self.heads, -1)
        query, key, value = heads.transpose(2, 0, 3, 1, 4)
        scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
        causal = jnp.tril(jnp.ones((sequence, sequence), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
        mixed = jnp.einsum("bhqk,bhkd->bqhd", weights, value)
        return self.attention_out(mixed.reshape(batch, sequence, width))


class Gpt(nnx.Module):  # type: ignore[misc] # as above
    """Byte tokens `[batch, sequence]`, integers, to logits `[batch, sequence, 256]`, float32."""

    def __init__(self, sizes: Sizes, *, rngs: nnx.Rngs) -> None:
        make_blocks = nnx.vmap(lambda rngs: Block(sizes, rngs=rngs))
        self.embedding = nnx.Embed(BYTE_VALUES, sizes.width, rngs=rngs)
        self.position = nnx.Embed(sizes.sequence, sizes.width, rngs=rngs)
        self.blocks = nnx.split_rngs(splits=sizes.layers)(make_blocks)(rngs)
        self.norm = nnx.LayerNorm(sizes.width, rngs=rngs)
        self.head = nnx.Linear(sizes.width, BYTE_VALUES, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        through_blocks = nnx.scan(
            lambda stream, block: block(stream), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry
        )
        stream = self.embedding(tokens) + self.position(jnp.arange(tokens.shape[1]))
        logits: jax.Array = self.head(self.norm(through_blocks(stream, self.blocks)))
        return logits
