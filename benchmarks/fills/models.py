"""Scanned transformers as users of Flax, Haiku and Equinox write them, with a causal mask.

8 layers, width 512, 8 heads, batch 8, sequence 1024, bfloat16 but for Equinox's float32; the mask
is the library's own, or what its examples use, and is made outside of the scan. Shapes only: they
are made to be compiled, not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from flax import linen

LAYERS, WIDTH, HEADS, BATCH, SEQUENCE, VOCABULARY = 8, 512, 8, 8, 1024, 4096

Model = tuple[Callable[..., jax.Array], tuple[Any, ...]]
"""A loss, and the shapes of its arguments: parameters, tokens, targets."""


def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    chosen = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(chosen, targets[..., None], axis=-1).mean()


class _FlaxBlock(linen.Module):  # type: ignore[misc] # flax has no type hints for it
    @linen.compact  # type: ignore[untyped-decorator] # as above
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        normed = linen.LayerNorm(dtype=jnp.bfloat16)(x)
        x = x + linen.MultiHeadDotProductAttention(HEADS, dtype=jnp.bfloat16)(normed, mask=mask)
        normed = linen.LayerNorm(dtype=jnp.bfloat16)(x)
        hidden = linen.gelu(linen.Dense(4 * WIDTH, dtype=jnp.bfloat16)(normed))
        return x + linen.Dense(WIDTH, dtype=jnp.bfloat16)(hidden), None


class _FlaxGpt(linen.Module):  # type: ignore[misc] # as above
    @linen.compact  # type: ignore[untyped-decorator] # as above
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = linen.Embed(VOCABULARY, WIDTH, dtype=jnp.bfloat16)(tokens)
        # Padding, token 0, is masked as in Flax's own language model.
        mask = linen.combine_masks(
            linen.make_causal_mask(tokens), linen.make_attention_mask(tokens > 0, tokens > 0)
        )
        blocks = linen.scan(
            _FlaxBlock,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=linen.broadcast,
            length=LAYERS,
        )
        x, _ = blocks()(x, mask)
        return linen.Dense(VOCABULARY, dtype=jnp.bfloat16)(x)


def flax() -> Model:
    """A causal mask and one of the padding, which depends on the tokens."""
    model = _FlaxGpt()
    tokens = _tokens()
    parameters = jax.eval_shape(model.init, jax.random.key(0), tokens)

    def loss(parameters: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        logits = model.apply(parameters, tokens)
        assert isinstance(logits, jax.Array)
        return _cross_entropy(logits, targets)

    return loss, (parameters, tokens, tokens)


def haiku() -> Model:
    """A causal mask, made by `jnp.tril` as in Haiku's own transformer."""

    def forward(tokens: jax.Array) -> jax.Array:
        x = hk.Embed(VOCABULARY, WIDTH)(tokens).astype(jnp.bfloat16)
        mask = jnp.tril(jnp.ones((1, 1, SEQUENCE, SEQUENCE)))

        def block(x: jax.Array) -> jax.Array:
            scale = hk.initializers.VarianceScaling(2 / LAYERS)
            normed = _haiku_norm(x)
            attended = hk.MultiHeadAttention(HEADS, WIDTH // HEADS, w_init=scale)(
                normed, normed, normed, mask=mask
            )
            x = x + attended.astype(x.dtype)
            hidden = jax.nn.gelu(hk.Linear(4 * WIDTH)(_haiku_norm(x)))
            return x + hk.Linear(WIDTH)(hidden).astype(x.dtype)

        x = hk.experimental.layer_stack(LAYERS)(block)(x)
        return hk.Linear(VOCABULARY)(x)

    model = hk.without_apply_rng(hk.transform(forward))
    tokens = _tokens()
    parameters = jax.eval_shape(model.init, jax.random.key(0), tokens)

    def loss(parameters: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        return _cross_entropy(model.apply(parameters, tokens), targets)

    return loss, (parameters, tokens, tokens)


def _haiku_norm(x: jax.Array) -> jax.Array:
    return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x)


class _EquinoxBlock(eqx.Module):  # type: ignore[misc] # Equinox's are not read by mypy
    attention: eqx.nn.MultiheadAttention
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    perceptron: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=first)
        self.norms = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.perceptron = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=second)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        normed = jax.vmap(self.norms[0])(x)
        x = x + self.attention(normed, normed, normed, mask=mask)
        return x + jax.vmap(self.perceptron)(jax.vmap(self.norms[1])(x))


def equinox() -> Model:
    """A causal mask, made by `jnp.tril`, for blocks that are mapped over the batch."""

    def make(key: jax.Array) -> Any:
        blocks = eqx.filter_vmap(_EquinoxBlock)(jax.random.split(key, LAYERS))
        embedding = jnp.zeros((VOCABULARY, WIDTH))
        return eqx.filter(blocks, eqx.is_array), embedding

    static = eqx.filter(
        eqx.filter_eval_shape(_EquinoxBlock, jax.random.key(0)), _is_array_or_shape, inverse=True
    )

    def loss(parameters: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        blocks, embedding = parameters
        mask = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))

        def block(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
            return jax.vmap(eqx.combine(layer, static), in_axes=(0, None))(x, mask), None

        x, _ = jax.lax.scan(block, embedding[tokens], blocks)
        return _cross_entropy(x @ embedding.T, targets)

    tokens = _tokens()
    return loss, (jax.eval_shape(make, jax.random.key(0)), tokens, tokens)


def _is_array_or_shape(value: Any) -> bool:
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct)


def _tokens() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((BATCH, SEQUENCE), jnp.int32)


MODELS = {"Flax": flax, "Haiku": haiku, "Equinox": equinox}


def lower(model: Callable[[], Model], sharding: Any) -> Any:
    """The gradient of a model's loss, lowered for the devices of a sharding."""
    loss, arguments = model()
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    return jax.jit(jax.value_and_grad(loss)).lower(*placed)
