"""Losses around which a program is built: several heads, loops, derivatives of their own."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.loss_heads.cross_entropies import label_of, logits_of, token_losses
from benchmarks.loss_heads.head import Arrays, head


@jax.custom_vjp
def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -label_of(jax.nn.log_softmax(logits), labels)


def _cross_entropy_forward(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
    return _cross_entropy(logits, labels), (logits, labels)


def _cross_entropy_backward(residuals: Any, given: jax.Array) -> tuple[jax.Array, None]:
    logits, labels = residuals
    chosen = jax.nn.one_hot(labels, logits.shape[-1])
    return given[..., None] * (jax.nn.softmax(logits) - chosen), None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


@head()
def own_derivative(parameters: Arrays, batch: Arrays) -> jax.Array:
    return _cross_entropy(logits_of(parameters), batch["labels"]).mean()


@jax.custom_vjp
def _scattered_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(logits)[jnp.arange(labels.size), labels]


def _scattered_forward(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
    values = jax.nn.softmax(logits)
    return _scattered_cross_entropy(logits, labels), (values, labels)


def _scattered_backward(residuals: Any, given: jax.Array) -> tuple[jax.Array, None]:
    values, labels = residuals
    return given[:, None] * values.at[jnp.arange(labels.size), labels].add(-1.0), None


_scattered_cross_entropy.defvjp(_scattered_forward, _scattered_backward)


@head()
def own_scatter(parameters: Arrays, batch: Arrays) -> jax.Array:
    """A derivative of its own that takes 1 from the label's probability."""
    logits = logits_of(parameters)
    flat = logits.reshape(-1, logits.shape[-1])
    return _scattered_cross_entropy(flat, batch["labels"].reshape(-1)).mean()


@head()
def checkpointed(parameters: Arrays, batch: Arrays) -> jax.Array:
    return jax.checkpoint(token_losses)(parameters, batch).mean()


@head()
def checkpointed_product(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The product alone is done again."""
    logits = jax.checkpoint(logits_of)(parameters)
    return -label_of(jax.nn.log_softmax(logits), batch["labels"]).mean()


@head()
def user_loop(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The user's own loop over sequences."""

    def body(total: jax.Array, part: Any) -> tuple[jax.Array, None]:
        hidden, labels = part
        losses = token_losses(parameters | {"x": hidden}, {"labels": labels})
        return total + losses.sum(), None

    total, _ = jax.lax.scan(body, jnp.zeros(()), (parameters["x"], batch["labels"]))
    return total / batch["labels"].size


@head()
def checkpointed_loop(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The user's own loop that keeps no logits."""

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def losses_of(weights: jax.Array, hidden: jax.Array, labels: jax.Array) -> jax.Array:
        return token_losses({"x": hidden, "w": weights}, {"labels": labels}).sum()

    def body(total: jax.Array, part: Any) -> tuple[jax.Array, None]:
        return total + losses_of(parameters["w"], *part), None

    total, _ = jax.lax.scan(body, jnp.zeros(()), (parameters["x"], batch["labels"]))
    return total / batch["labels"].size


@head(more={"layers": "2dd"})
def head_of_each_layer(parameters: Arrays, batch: Arrays) -> jax.Array:
    """A loss after each layer, in the loop over layers."""

    def body(hidden: jax.Array, layer: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = hidden + jnp.tanh(hidden @ layer.astype(hidden.dtype) / hidden.shape[-1])
        return hidden, token_losses(parameters | {"x": hidden}, batch).mean()

    _, losses = jax.lax.scan(body, parameters["x"], parameters["layers"])
    return losses.mean()


@head(more={"v": "vd", "gate": "d2"})
def mixture_of_softmaxes(parameters: Arrays, batch: Arrays) -> jax.Array:
    gate = (parameters["x"] @ parameters["gate"].astype(parameters["x"].dtype)).astype(jnp.float32)
    shares = jax.nn.log_softmax(gate)
    chosen = [
        label_of(jax.nn.log_softmax(logits_of(parameters, weight)), batch["labels"])
        for weight in ("w", "v")
    ]
    return -jax.nn.logsumexp(jnp.stack(chosen, axis=-1) + shares, axis=-1).mean()


@head(more={"v": "vd"})
def next_two_words(parameters: Arrays, batch: Arrays) -> jax.Array:
    """A head for each of the next words."""
    labels = batch["labels"]
    losses = [
        -label_of(jax.nn.log_softmax(logits_of(parameters, weight)), jnp.roll(labels, -n, 1))
        for n, weight in enumerate(("w", "v"))
    ]
    return jnp.stack(losses).mean()


@head(batch={"teacher_x": "bsd", "teacher_w": "vd"})
def distillation(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Towards the words' probabilities by a second model, at temperature 2, and to the labels."""
    logits = logits_of(parameters)
    teacher = logits_of({"x": batch["teacher_x"], "w": batch["teacher_w"]})
    wanted = jax.nn.softmax(teacher / 2.0)
    away = (wanted * (jax.nn.log_softmax(teacher / 2.0) - jax.nn.log_softmax(logits / 2.0))).sum(-1)
    chosen = label_of(jax.nn.log_softmax(logits), batch["labels"])
    return (0.5 * 4.0 * away - 0.5 * chosen).mean()


@head(more={"v": "vd"})
def symmetric_divergence(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Of two heads that are both trained."""
    one = jax.nn.log_softmax(logits_of(parameters, "w"))
    other = jax.nn.log_softmax(logits_of(parameters, "v"))
    away = ((jnp.exp(one) - jnp.exp(other)) * (one - other)).sum(axis=-1)
    return (away - label_of(one, batch["labels"]) - label_of(other, batch["labels"])).mean()


@head()
def contrastive(parameters: Arrays, batch: Arrays) -> jax.Array:
    """Cosines with a table of embeddings, one of which the label names, at a temperature."""

    def direction(vectors: jax.Array) -> jax.Array:
        wide = vectors.astype(jnp.float32)
        return wide * jax.lax.rsqrt((wide * wide).sum(axis=-1, keepdims=True) + 1e-6)

    cosines = direction(parameters["x"]) @ direction(parameters["w"]).T
    return -label_of(jax.nn.log_softmax(cosines / 0.1), batch["labels"]).mean()


@head()
def preferences(parameters: Arrays, batch: Arrays) -> jax.Array:
    """The first half of the sequences against the second, by their likelihoods (as DPO)."""
    likelihoods = -token_losses(parameters, batch).sum(axis=1)
    half = likelihoods.shape[0] // 2
    return -jax.nn.log_sigmoid(0.1 * (likelihoods[:half] - likelihoods[half:])).mean()
