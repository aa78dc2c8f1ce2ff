"""Loss heads, however they are written, run in chunks and give what they gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.chunk_runs import assert_same, run
from support.flows.heads import HEADS, Head, chosen

BATCH, LENGTH, WIDTH, WORDS = 4, 6, 8, 64

DRAWN = np.random.default_rng(0)
ARGUMENTS = (
    jnp.asarray(DRAWN.normal(size=(BATCH, LENGTH, WIDTH)), jnp.float32),
    jnp.asarray(DRAWN.normal(size=(WORDS, WIDTH)), jnp.float32),
    jnp.asarray(DRAWN.integers(0, WORDS, (BATCH, LENGTH)), jnp.int32),
    jnp.asarray(DRAWN.integers(0, 2, (BATCH, LENGTH)), jnp.float32),
)

SPEC = "chunk{chunks=4 min_bytes=1KiB}"


def with_weights_first(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = jnp.einsum("vd,bsd->bsv", w, x)
    return -chosen(jax.nn.log_softmax(scores), labels).mean()


def in_rows(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = jax.nn.log_softmax((x @ w.T).reshape(-1, WORDS))
    return -chosen(scores, labels.reshape(-1)).mean()


def of_rows(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = jax.nn.log_softmax(x.reshape(-1, WIDTH) @ w.T)
    return -chosen(scores, labels.reshape(-1)).mean()


def counting_hits(x: Any, w: Any, labels: Any, mask: Any) -> Any:
    scores = x @ w.T
    hits = jax.lax.stop_gradient((scores.argmax(-1) == labels).astype(jnp.float32).mean())
    return -chosen(jax.nn.log_softmax(scores), labels).mean() + 0 * hits


CHUNKED: list[Head] = [*HEADS, with_weights_first, in_rows, of_rows, counting_hits]


def gradient(loss: Head) -> Callable[..., Any]:
    return jax.value_and_grad(loss, (0, 1))


@pytest.mark.parametrize("loss", CHUNKED, ids=lambda loss: loss.__name__)
def test_a_head_runs_in_chunks(loss: Head) -> None:
    got = run(gradient(loss), SPEC, *ARGUMENTS)
    assert got.regions, got.left
    assert_same(gradient(loss), got.results, *ARGUMENTS)
