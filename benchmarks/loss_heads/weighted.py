"""Losses that weigh tokens, add terms of their own, or return more than a number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.loss_heads.cross_entropies import label_of, logits_of, token_losses
from benchmarks.loss_heads.head import Arrays, head

IGNORED = -100
"""What stands in the place of a label that does not count."""


@head(batch={"mask": "bs"})
def masked(parameters: Arrays, batch: Arrays) -> jax.Array:
    losses = jnp.where(batch["mask"], token_losses(parameters, batch), 0.0)
    return losses.sum() / batch["mask"].sum()


@head(batch={"mask": "bs"}, aux=True)
def sum_and_count(parameters: Arrays, batch: Arrays) -> Any:
    """The sum, and apart from it how many it is of."""
    return (token_losses(parameters, batch) * batch["mask"]).sum(), batch["mask"].sum()


@head(batch={"weights": "bs"})
def token_weights(parameters: Arrays, batch: Arrays) -> jax.Array:
    return (token_losses(parameters, batch) * batch["weights"]).sum() / batch["weights"].sum()


@head(batch={"mask": "bs"})
def ignored_index(parameters: Arrays, batch: Arrays) -> jax.Array:
    labels = jnp.where(batch["mask"], batch["labels"], IGNORED)
    counts = labels != IGNORED
    losses = token_losses(parameters, {"labels": jnp.where(counts, labels, 0)})
    return jnp.where(counts, losses, 0.0).sum() / jnp.maximum(counts.sum(), 1)


@head(batch={"mask": "bs"})
def labels_out_of_range(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The label that does not count is outside of the vocabulary: its loss is not a number."""
    words = parameters["w"].shape[0]
    labels = jnp.where(batch["mask"], batch["labels"], words + 5)
    losses = token_losses(parameters, {"labels": labels})
    return jnp.nansum(losses) / batch["mask"].sum()


@head(batch={"mask": "bs"})
def mean_of_sequences(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Each sequence counts alike, however long it is."""
    losses = token_losses(parameters, batch) * batch["mask"]
    return (losses.sum(axis=1) / (batch["mask"].sum(axis=1) + 1)).mean()


@head()
def z_loss(parameters: Arrays, batch: Arrays) -> jax.Array:
    logits = logits_of(parameters)
    sums = jax.nn.logsumexp(logits, axis=-1)
    return (sums - label_of(logits, batch["labels"]) + 1e-4 * sums**2).mean()


@head()
def smoothed_labels(parameters: Arrays, batch: Arrays) -> jax.Array:
    logits = logits_of(parameters)
    words = logits.shape[-1]
    smooth = 0.9 * jax.nn.one_hot(batch["labels"], words) + 0.1 / words
    return -(smooth * jax.nn.log_softmax(logits)).sum(axis=-1).mean()


@head()
def smoothed_by_mean(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The same without labels of one element a word."""
    values = jax.nn.log_softmax(logits_of(parameters))
    return -(0.9 * label_of(values, batch["labels"]) + 0.1 * values.mean(axis=-1)).mean()


@head()
def focal(parameters: Arrays, batch: Arrays) -> jax.Array:
    chosen = label_of(jax.nn.log_softmax(logits_of(parameters)), batch["labels"])
    return -((1.0 - jnp.exp(chosen)) ** 2 * chosen).mean()


@head()
def poly(parameters: Arrays, batch: Arrays) -> jax.Array:
    chosen = label_of(jax.nn.log_softmax(logits_of(parameters)), batch["labels"])
    return (1.0 - jnp.exp(chosen) - chosen).mean()


@head()
def confidence_penalty(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Less 0.1 of the entropy."""
    values = jax.nn.log_softmax(logits_of(parameters))
    entropy = -(jnp.exp(values) * values).sum(axis=-1)
    return -(label_of(values, batch["labels"]) + 0.1 * entropy).mean()


@head(batch={"weights": "bs"})
def mixed_labels(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Two labels for each token."""
    values = jax.nn.log_softmax(logits_of(parameters))
    one, other = batch["labels"], jnp.roll(batch["labels"], 1, axis=0)
    share = batch["weights"]
    return -(share * label_of(values, one) + (1 - share) * label_of(values, other)).mean()


@head(batch={"weights": "bs"})
def policy_gradient(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Clipped ratios to an older policy, times advantages."""
    chosen = label_of(jax.nn.log_softmax(logits_of(parameters)), batch["labels"])
    ratio = jnp.exp(chosen - jax.lax.stop_gradient(chosen) + 0.1 * batch["weights"])
    advantage = batch["weights"] - 0.5
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()


@head()
def perplexity(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The exponential of a mean: its gradient is known when all tokens have been seen."""
    return jnp.exp(token_losses(parameters, batch).mean() / 10.0)


@head(aux=True)
def accuracy(parameters: Arrays, batch: Arrays) -> Any:
    logits = logits_of(parameters)
    hits = (logits.argmax(axis=-1) == batch["labels"]).mean()
    return -label_of(jax.nn.log_softmax(logits), batch["labels"]).mean(), hits


@head()
def binary(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Each word by itself, there or not."""
    logits = logits_of(parameters)
    there = jax.nn.one_hot(batch["labels"], logits.shape[-1])
    return (jax.nn.softplus(logits) - there * logits).sum(axis=-1).mean()


@head()
def angular_margin(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The label's logit has to lead by a margin."""
    logits = logits_of(parameters)
    sequences, tokens = (jnp.arange(size) for size in batch["labels"].shape)
    place = sequences[:, None], tokens[None, :], batch["labels"]
    return -jax.nn.log_softmax(logits.at[place].add(-0.2))[place].mean()


@head()
def hinge(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The label's logit against the largest other one."""
    logits = logits_of(parameters)
    flat = logits.reshape(-1, logits.shape[-1])
    labels = batch["labels"].reshape(-1)
    rows = jnp.arange(labels.size)
    others = (flat * 1.0).at[rows, labels].set(-1e9).max(axis=-1)
    return jnp.maximum(0.0, 1.0 + others - flat[rows, labels]).mean()
