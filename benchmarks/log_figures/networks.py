"""Steps of networks by Flax, Haiku, Equinox, transformers and penzai."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.log_figures.common import (
    RATE,
    Program,
    cross_entropy,
    floats,
    integers,
    key,
    shapes,
    supervised,
    trained,
)


def flax_nnx() -> Program:
    """A decoder of 3 unrolled layers with dropout, by AdamW with clipped gradients."""
    from flax import nnx

    width, heads, words = 128, 4, 1024

    class Block(nnx.Module):  # type: ignore[misc] # flax has no type hints for it
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
            self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
            self.wide = nnx.Linear(width, 4 * width, rngs=rngs)
            self.narrow = nnx.Linear(4 * width, width, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            mask = nnx.make_causal_mask(x[..., 0])
            x = x + self.dropout(self.attention(self.norms[0](x), mask=mask))
            return x + self.dropout(self.narrow(nnx.gelu(self.wide(self.norms[1](x)))))

    class Decoder(nnx.Module):  # type: ignore[misc] # as above
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embedding = nnx.Embed(words, width, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(3)])

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.embedding.attend(x)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(RATE))

    def make() -> Any:
        model = Decoder(nnx.Rngs(0))
        return nnx.split((model, nnx.Optimizer(model, optimizer, wrt=nnx.Param)))

    graph, state = nnx.eval_shape(make)

    def loss(model: Any, tokens: jax.Array) -> jax.Array:
        return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])

    def step(state: Any, tokens: jax.Array) -> Any:
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(loss)(model, tokens)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    return step, (state, integers(32, 129))


def flax_linen() -> Program:
    """A convolutional network with large strides, as of agents that look at a screen."""
    from flax import linen

    class Network(linen.Module):  # type: ignore[misc] # flax has no type hints for it
        @linen.compact  # type: ignore[untyped-decorator] # as above
        def __call__(self, x: jax.Array) -> jax.Array:
            for features, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
                x = linen.relu(linen.Conv(features, (size, size), (stride, stride))(x))
            return linen.Dense(4)(linen.relu(linen.Dense(512)(x.reshape(x.shape[0], -1))))

    return supervised(Network(), floats(64, 84, 84, 4), optax.adam(RATE))


def flax_minibatches() -> Program:
    """The same for four minibatches in a scan, each with its update."""
    update, (state, (images, targets)) = flax_linen()

    def step(state: Any, batches: Any) -> Any:
        return jax.lax.scan(update, state, batches)

    stacked = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct((4, each.shape[0] // 4, *each.shape[1:]), each.dtype),
        (images, targets),
    )
    return step, (state, stacked)


def haiku() -> Program:
    """A transformer of 3 stacked layers with dropout, by AdamW."""
    import haiku as hk

    width, words = 128, 1024

    def forward(tokens: jax.Array) -> jax.Array:
        x = hk.Embed(words, width)(tokens)
        mask = jnp.tril(jnp.ones((1, 1, tokens.shape[1], tokens.shape[1])))

        def block(x: jax.Array) -> jax.Array:
            scale = hk.initializers.VarianceScaling(0.5)
            attention = hk.MultiHeadAttention(4, width // 4, w_init=scale)
            normed = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.dropout(hk.next_rng_key(), 0.1, attention(normed, normed, normed, mask))
            hidden = jax.nn.gelu(hk.Linear(4 * width)(hk.LayerNorm(-1, True, True)(x)))
            return x + hk.dropout(hk.next_rng_key(), 0.1, hk.Linear(width)(hidden))

        return hk.Linear(words)(hk.experimental.layer_stack(3)(block)(x))

    model, tokens = hk.transform(forward), integers(32, 128)
    parameters = jax.eval_shape(model.init, jax.random.key(0), tokens)

    def loss(parameters: Any, key: jax.Array, tokens: jax.Array) -> jax.Array:
        return cross_entropy(model.apply(parameters, key, tokens)[:, :-1], tokens[:, 1:])

    return trained(loss, parameters, optax.adamw(RATE), key(), tokens)


def equinox() -> Program:
    """An MLP-Mixer of 4 blocks, mapped over the batch, by Adam."""
    import equinox as eqx

    patches, width = 64, 128

    class Block(eqx.Module):  # type: ignore[misc] # Equinox's are not read by mypy
        across: eqx.nn.MLP
        within: eqx.nn.MLP
        norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]

        def __init__(self, key: jax.Array) -> None:
            first, second = jax.random.split(key)
            self.across = eqx.nn.MLP(patches, patches, 256, 1, jax.nn.gelu, key=first)
            self.within = eqx.nn.MLP(width, width, 512, 1, jax.nn.gelu, key=second)
            shape = (width, patches)
            self.norms = eqx.nn.LayerNorm(shape), eqx.nn.LayerNorm(shape)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + jax.vmap(self.across)(self.norms[0](x))
            return x + jax.vmap(self.within, 1, 1)(self.norms[1](x))

    def make() -> Any:
        keys = jax.random.split(jax.random.key(0), 5)
        return [Block(key) for key in keys[:4]], eqx.nn.Linear(width, 10, key=keys[4])

    abstract = eqx.filter_eval_shape(make)
    parameters, static = eqx.partition(abstract, lambda leaf: hasattr(leaf, "shape"))

    def loss(parameters: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        blocks, head = eqx.combine(parameters, static)

        def apply(x: jax.Array) -> jax.Array:
            for block in blocks:
                x = block(x)
            return head(x.mean(1))

        return cross_entropy(jax.vmap(apply)(images), labels)

    return trained(loss, parameters, optax.adam(RATE), floats(32, width, patches), integers(32))


def transformers_gpt2() -> Program:
    """GPT-2 of 2 layers with padding and dropout, by AdamW."""
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(vocab_size=2048, n_positions=128, n_embd=128, n_layer=2, n_head=4)
    model = FlaxGPT2LMHeadModel(config, _do_init=False)
    parameters = jax.eval_shape(lambda: model.init_weights(jax.random.key(0), (1, 128)))

    def loss(parameters: Any, key: jax.Array, tokens: jax.Array, mask: jax.Array) -> jax.Array:
        logits = model(tokens, mask, params=parameters, dropout_rng=key, train=True).logits
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    tokens = integers(32, 128)
    return trained(loss, parameters, optax.adamw(RATE), key(), tokens, tokens)


def transformers_vit() -> Program:
    """A vision transformer of 3 layers, by AdamW."""
    from transformers import FlaxViTForImageClassification, ViTConfig

    config = ViTConfig(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        image_size=64,
        patch_size=8,
        num_labels=16,
    )
    model = FlaxViTForImageClassification(config, _do_init=False)
    parameters = jax.eval_shape(lambda: model.init_weights(jax.random.key(0), (1, 64, 64, 3)))

    def loss(parameters: Any, key: jax.Array, pixels: jax.Array, labels: jax.Array) -> jax.Array:
        logits = model(pixels, params=parameters, dropout_rng=key, train=True).logits
        return cross_entropy(logits, labels)

    pixels = floats(32, 3, 64, 64)
    return trained(loss, parameters, optax.adamw(RATE), key(), pixels, integers(32))


def penzai() -> Program:
    """A Llama-like model with named axes, 2 layers, by Adam."""
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common

    config = llamalike_common.LlamalikeTransformerConfig(
        num_kv_heads=2,
        query_head_multiplier=2,
        embedding_dim=128,
        projection_dim=32,
        mlp_hidden_dim=512,
        num_decoder_blocks=2,
        vocab_size=1024,
        mlp_variant="swiglu",
        rope_wavelength=10_000,
        tie_embedder_and_logits=False,
    )
    model = llamalike_common.build_llamalike_transformer(config, init_base_rng=jax.random.key(0))
    slots, variables = pz.unbind_variables(model, freeze=True)

    def loss(variables: Any, tokens: jax.Array) -> jax.Array:
        bound = pz.bind_variables(slots, variables)
        named = pz.nx.wrap(tokens).tag("batch", "seq")
        inputs = bound(named, token_positions=pz.nx.arange("seq", tokens.shape[1]))
        logits = inputs.untag("batch", "seq", "vocabulary").unwrap()
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    return trained(loss, shapes(variables), optax.adam(RATE), integers(16, 128))
