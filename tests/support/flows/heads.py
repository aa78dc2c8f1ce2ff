"""Loss heads, written in many ways: of hidden states, weights, labels and a mask.

Hidden states have any number of axes before their features; the weights are [words, features].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Head = Callable[[Any, Any, Any, Any], Any]


def chosen(scores: Any, labels: Any) -> Any:
    return jnp.take_along_axis(scores, labels[..., None], -1)[..., 0]


def logs(x: Any, w: Any) -> Any:
    return jax.nn.log_softmax(x @ w.T)


def plain(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    return -chosen(logs(x, w), labels).mean()


def by_vmap(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    rows = jax.vmap(lambda row, label: row[label])
    return -rows(logs(x, w).reshape(-1, w.shape[0]), labels.reshape(-1)).mean()


def by_one_hot(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    return -(logs(x, w) * jax.nn.one_hot(labels, w.shape[0])).sum(-1).mean()


def masked(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    return -(chosen(logs(x, w), labels) * mask).sum() / mask.sum()


def ignoring_a_label(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    valid = labels != 4
    losses = jnp.where(valid, chosen(logs(x, w), jnp.where(valid, labels, 0)), 0)
    return -losses.sum() / jnp.maximum(valid.sum(), 1)


def with_a_norm(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = x @ w.T
    norm = jax.nn.logsumexp(scores, -1)
    return (norm - chosen(scores, labels)).mean() + 1e-4 * (norm**2).mean()


def smoothed(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    targets = jax.nn.one_hot(labels, w.shape[0]) * 0.9 + 0.1 / w.shape[0]
    return -(logs(x, w) * targets).sum(-1).mean()


def focal(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    losses = chosen(logs(x, w), labels)
    return -((1 - jnp.exp(losses)) ** 2 * losses).mean()


def soft_capped(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    return -chosen(jax.nn.log_softmax(3 * jnp.tanh(x @ w.T / 3)), labels).mean()


def distilled(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    teacher = jax.nn.log_softmax(jax.lax.stop_gradient(jnp.sin(x) @ jnp.cos(w).T))
    return (jnp.exp(teacher) * (teacher - logs(x, w))).sum(-1).mean()


def two_heads(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    return plain(x, w, labels, mask) + plain(jnp.tanh(x), w * 2, labels, mask)


def checkpointed(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    return jax.checkpoint(plain)(x, w, labels, mask)


def with_weights_first(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = jnp.einsum("vd,...d->...v", w, x)
    return -chosen(jax.nn.log_softmax(scores), labels).mean()


HEADS: tuple[Head, ...] = (
    plain,
    by_vmap,
    by_one_hot,
    masked,
    ignoring_a_label,
    with_a_norm,
    smoothed,
    focal,
    soft_capped,
    distilled,
    two_heads,
    checkpointed,
    with_weights_first,
)
