"""Cross-entropy of the next word: the same loss, as people write it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.loss_heads.head import Arrays, head


def logits_of(parameters: Arrays, weight: str = "w") -> jax.Array:
    """The product in the type of its operands, in float32 from there."""
    hidden, weights = parameters["x"], parameters[weight]
    return (hidden @ weights.astype(hidden.dtype).T).astype(jnp.float32)


def label_of(values: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    """The element of each row that its label names."""
    return jnp.take_along_axis(values, labels[..., None], axis=-1, **options)[..., 0]


def token_losses(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The loss of each token."""
    return -label_of(jax.nn.log_softmax(logits_of(parameters)), batch["labels"])


@head()
def log_softmax(parameters: Arrays, batch: Arrays) -> jax.Array:
    return token_losses(parameters, batch).mean()


@head()
def flat_arange(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Of logits with one axis for all tokens, indexed by their numbers."""
    logits = logits_of(parameters)
    flat = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]))
    return -flat[jnp.arange(flat.shape[0]), batch["labels"].reshape(-1)].mean()


@head()
def flat_hidden(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The hidden state has one axis for all tokens already."""
    hidden = parameters["x"].reshape(-1, parameters["x"].shape[-1])
    logits = logits_of(parameters | {"x": hidden})
    return -label_of(jax.nn.log_softmax(logits), batch["labels"].reshape(-1)).mean()


@head()
def grid_of_aranges(parameters: Arrays, batch: Arrays) -> jax.Array:
    values = jax.nn.log_softmax(logits_of(parameters))
    sequences, tokens = (jnp.arange(size) for size in batch["labels"].shape)
    return -values[sequences[:, None], tokens[None, :], batch["labels"]].mean()


@head()
def vmapped_index(parameters: Arrays, batch: Arrays) -> jax.Array:
    values = jax.nn.log_softmax(logits_of(parameters))
    return -jax.vmap(jax.vmap(lambda row, label: row[label]))(values, batch["labels"]).mean()


@head()
def vmapped_loss(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The loss of one token, mapped over all."""

    def of_token(hidden: jax.Array, label: jax.Array) -> jax.Array:
        return -jax.nn.log_softmax((parameters["w"] @ hidden).astype(jnp.float32))[label]

    return jax.vmap(jax.vmap(of_token))(parameters["x"], batch["labels"]).mean()


@head()
def optax_labels(parameters: Arrays, batch: Arrays) -> jax.Array:
    logits, labels = logits_of(parameters), batch["labels"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@head()
def optax_one_hot(parameters: Arrays, batch: Arrays) -> jax.Array:
    logits = logits_of(parameters)
    labels = jax.nn.one_hot(batch["labels"], logits.shape[-1])
    return optax.softmax_cross_entropy(logits, labels).mean()


@head()
def one_hot_einsum(parameters: Arrays, batch: Arrays) -> jax.Array:
    logits = logits_of(parameters)
    labels = jax.nn.one_hot(batch["labels"], logits.shape[-1])
    return -jnp.einsum("bsv,bsv->", labels, jax.nn.log_softmax(logits)) / batch["labels"].size


@head()
def logsumexp(parameters: Arrays, batch: Arrays) -> jax.Array:
    logits = logits_of(parameters)
    return (jax.nn.logsumexp(logits, axis=-1) - label_of(logits, batch["labels"])).mean()


@head()
def by_hand(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Shifted, exponentiated, summed: what log_softmax does."""
    logits = logits_of(parameters)
    shifted = logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    sums = jnp.log(jnp.exp(shifted).sum(axis=-1))
    return (sums - label_of(shifted, batch["labels"])).mean()


@head()
def clipped_labels(parameters: Arrays, batch: Arrays) -> jax.Array:
    values = jax.nn.log_softmax(logits_of(parameters))
    return -label_of(values, batch["labels"], mode="clip").mean()


@head()
def probability(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The logarithm of the label's probability alone."""
    chosen = label_of(jax.nn.softmax(logits_of(parameters)), batch["labels"])
    return -jnp.log(chosen + 1e-9).mean()


@head()
def float32_product(parameters: Arrays, batch: Arrays) -> jax.Array:
    wide = {name: each.astype(jnp.float32) for name, each in parameters.items()}
    return token_losses(wide, batch).mean()


@head()
def float32_result(parameters: Arrays, batch: Arrays) -> jax.Array:
    """A product of narrow operands that is written in float32."""
    hidden, weights = parameters["x"], parameters["w"].astype(parameters["x"].dtype)
    logits = jnp.einsum("bsd,vd->bsv", hidden, weights, preferred_element_type=jnp.float32)
    return -label_of(jax.nn.log_softmax(logits), batch["labels"]).mean()


@head()
def narrow(parameters: Arrays, batch: Arrays) -> jax.Array:
    """All of it in the type of the product."""
    logits = parameters["x"] @ parameters["w"].astype(parameters["x"].dtype).T
    return -label_of(jax.nn.log_softmax(logits), batch["labels"]).mean().astype(jnp.float32)


@head(more={"bias": "v"})
def bias(parameters: Arrays, batch: Arrays) -> jax.Array:
    logits = logits_of(parameters) + parameters["bias"].astype(jnp.float32)
    return -label_of(jax.nn.log_softmax(logits), batch["labels"]).mean()


@head()
def soft_cap(parameters: Arrays, batch: Arrays) -> jax.Array:
    capped = 30.0 * jnp.tanh(logits_of(parameters) / 30.0)
    return -label_of(jax.nn.log_softmax(capped), batch["labels"]).mean()


@head()
def padded_vocabulary(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The last words are none: rows of the weights that a sharding or an alignment asks for."""
    logits = logits_of(parameters)
    words = logits.shape[-1] - 2
    masked = jnp.where(jnp.arange(logits.shape[-1]) < words, logits, -1e9)
    return -label_of(jax.nn.log_softmax(masked), batch["labels"] % words).mean()


@head()
def tied_embedding(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The same weights embed the word before."""
    before = jnp.roll(batch["labels"], 1, axis=-1)
    hidden = parameters["x"] + parameters["w"].astype(parameters["x"].dtype)[before]
    return token_losses(parameters | {"x": hidden}, batch).mean()


@head(more={"gain": "d"})
def normalized(parameters: Arrays, batch: Arrays) -> jax.Array:
    """With the last norm of the model, as it stands before a head."""
    hidden = parameters["x"].astype(jnp.float32)
    scale = jax.lax.rsqrt((hidden * hidden).mean(axis=-1, keepdims=True) + 1e-6)
    normed = (hidden * scale).astype(parameters["x"].dtype) * parameters["gain"]
    return token_losses(parameters | {"x": normed}, batch).mean()
