"""Loss heads, however they are written: one loop over tokens has the loss and both gradients.

Hidden states have any number of axes before their features; the weights are [words, features].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.flows.runs import assert_chunks_agree, flow_of, lowered, results_of

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


TOKENS, WIDTH, WORDS = 4, 3, 5

DRAWN = np.random.default_rng(0)
ARGUMENTS = (
    DRAWN.normal(size=(TOKENS, WIDTH)).astype(np.float32),
    DRAWN.normal(size=(WORDS, WIDTH)).astype(np.float32),
    np.array([0, 4, 2, 1], np.int32),
    np.array([1, 0, 1, 1], np.float32),
)


def gradient(loss: Head) -> Callable[..., Any]:
    return jax.value_and_grad(loss, (0, 1))


SPLIT = "split along axis 0 in phase 1"
SUM = "partial sum in phase 1"


@pytest.mark.parametrize("loss", HEADS, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("labels", [False, True], ids=["tokens", "tokens and labels"])
def test_one_loop_has_all_of_a_head(loss: Head, labels: bool) -> None:
    module = lowered(gradient(loss), *ARGUMENTS)
    flow = flow_of(module, *([(0, 0), (2, 0), (3, 0)] if labels else [(0, 0)]))
    assert results_of(flow) == [SUM, SPLIT, SUM]
    assert len(flow.phases) == 1
    assert flow.share == pytest.approx(1.0)
    assert_chunks_agree(module, flow, ARGUMENTS, count=3)


def test_a_function_of_the_mean_takes_two_loops() -> None:
    def perplexity(x: Any, w: Any, labels: Any, mask: Any) -> Any:
        return jnp.exp(plain(x, w, labels, mask))

    module = lowered(gradient(perplexity), *ARGUMENTS)
    flow = flow_of(module, (0, 0))
    assert [phase.share > 0 for phase in flow.phases] == [True, True]
    assert flow.phases[0].ends[0].reader.name == "stablehlo.exponential"
    assert_chunks_agree(module, flow, ARGUMENTS)


def test_labels_looked_up_by_row_and_column_need_all_scores() -> None:
    """An index that is the row's own number is data to a gather, as any other."""

    def loss(x: Any, w: Any, labels: Any, mask: Any) -> Any:
        return -logs(x, w)[jnp.arange(TOKENS), labels].mean()

    module = lowered(gradient(loss), *ARGUMENTS)
    flow = flow_of(module, (0, 0))
    assert results_of(flow) == ["whole after phase 1", SPLIT, SUM]
    [exit_] = [each for each in flow.exits if not each.returned]
    assert [reader.name for reader in exit_.readers] == ["stablehlo.gather"]
    assert_chunks_agree(module, flow, ARGUMENTS)


def test_words_are_cut_with_more_loops() -> None:
    module = lowered(gradient(plain), *ARGUMENTS)
    flow = flow_of(module, (1, 0))
    assert len(flow.phases) > 2
    assert_chunks_agree(module, flow, ARGUMENTS)
