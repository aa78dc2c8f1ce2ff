"""Loss heads, however they are written: one loop over tokens has the loss and both gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.flows.heads import HEADS, Head, logs, plain
from support.flows.runs import assert_chunks_agree, flow_of, lowered, results_of

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
