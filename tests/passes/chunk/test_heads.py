"""Loss heads, however they are written, run in chunks and give what they gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.chunk_runs import assert_same, run

BATCH, LENGTH, WIDTH, WORDS = 4, 6, 8, 64

DRAWN = np.random.default_rng(0)
ARGUMENTS = (
    jnp.asarray(DRAWN.normal(size=(BATCH, LENGTH, WIDTH)), jnp.float32),
    jnp.asarray(DRAWN.normal(size=(WORDS, WIDTH)), jnp.float32),
    jnp.asarray(DRAWN.integers(0, WORDS, (BATCH, LENGTH)), jnp.int32),
    jnp.asarray(DRAWN.integers(0, 2, (BATCH, LENGTH)), jnp.float32),
)

SPEC = "chunk{chunks=4 min_bytes=1KiB}"

Loss = Callable[[Any, Any, Any, Any], Any]


def chosen(scores: Any, labels: Any) -> Any:
    return jnp.take_along_axis(scores, labels[..., None], -1)[..., 0]


def logs(x: Any, w: Any) -> Any:
    return jax.nn.log_softmax(x @ w.T)


def plain(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    return -chosen(logs(x, w), labels).mean()


def with_weights_first(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = jnp.einsum("vd,bsd->bsv", w, x)
    return -chosen(jax.nn.log_softmax(scores), labels).mean()


def in_rows(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = jax.nn.log_softmax((x @ w.T).reshape(-1, WORDS))
    return -chosen(scores, labels.reshape(-1)).mean()


def of_rows(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = jax.nn.log_softmax(x.reshape(-1, WIDTH) @ w.T)
    return -chosen(scores, labels.reshape(-1)).mean()


def by_vmap(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    rows = jax.vmap(lambda row, label: row[label])
    return -rows(logs(x, w).reshape(-1, WORDS), labels.reshape(-1)).mean()


def by_one_hot(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    return -(logs(x, w) * jax.nn.one_hot(labels, WORDS)).sum(-1).mean()


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
    targets = jax.nn.one_hot(labels, WORDS) * 0.9 + 0.1 / WORDS
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


def counting_hits(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = x @ w.T
    hits = jax.lax.stop_gradient((scores.argmax(-1) == labels).astype(jnp.float32).mean())
    return -chosen(jax.nn.log_softmax(scores), labels).mean() + 0 * hits


CHUNKED: list[Loss] = [
    plain,
    with_weights_first,
    in_rows,
    of_rows,
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
    counting_hits,
]


def gradient(loss: Loss) -> Callable[..., Any]:
    return jax.value_and_grad(loss, (0, 1))


@pytest.mark.parametrize("loss", CHUNKED, ids=lambda loss: loss.__name__)
def test_a_head_runs_in_chunks(loss: Loss) -> None:
    got = run(gradient(loss), SPEC, *ARGUMENTS)
    assert got.regions, got.left
    assert_same(gradient(loss), got.results, *ARGUMENTS)
