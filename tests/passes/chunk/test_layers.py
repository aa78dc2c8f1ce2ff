"""Attention and MLPs run in chunks of queries and positions, where one loop has all that reads
them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.chunk_runs import assert_same, run

BATCH, LENGTH, WIDTH = 2, 32, 8

DRAWN = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return jnp.asarray(DRAWN.normal(size=shape) / 2, jnp.float32)


X = normal(BATCH, LENGTH, WIDTH)
WEIGHTS = (normal(WIDTH, 3 * WIDTH), normal(WIDTH, 8 * WIDTH), normal(8 * WIDTH, WIDTH))
# With NumPy, for XLA would compile it in each worker that collects the tests.
STACKED = tuple(jnp.asarray(np.stack([w, w / 2, w / 3])) for w in map(np.asarray, WEIGHTS))


def attention(x: Any, qkv: Any) -> Any:
    q, k, v = jnp.split(x @ qkv, 3, -1)
    scores = jnp.einsum("bqd,bkd->bqk", q, k)
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v


def perceptron(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.gelu(x @ up) @ down


def layer(x: Any, weights: Any) -> Any:
    x = x + attention(x, weights[0])
    return x + perceptron(x, *weights[1:])


def test_attention_is_cut_by_query_never_by_key() -> None:
    def function(x: Any) -> Any:
        q = k = v = x
        return jax.nn.softmax(jnp.einsum("qd,kd->qk", q, k * 2)) @ v

    got = run(function, "chunk{chunks=4 min_bytes=1KiB}", X[0])
    [region] = got.regions
    assert region["along"] == "axis 0"
    assert region["chunks"].startswith("4 chunks")
    assert region["now"] < region["whole"]
    assert_same(function, got.results, X[0])


def test_keys_alone_are_no_candidate() -> None:
    def function(q: Any, x: Any) -> Any:
        return jax.nn.softmax(q @ x.T) @ x

    got = run(function, "chunk{chunks=4 min_bytes=64}", X[0, 0], X[0])
    assert not got.regions
    assert "takes 3 loops" in got.left[0]["why"]
    assert_same(function, got.results, X[0, 0], X[0])


def test_an_mlp_is_cut_by_position() -> None:
    got = run(perceptron, "chunk{chunks=4 min_bytes=1KiB}", X, *WEIGHTS[1:])
    [region] = got.regions
    assert region["products"] == 2
    assert_same(perceptron, got.results, X, *WEIGHTS[1:])


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_layers_that_are_recomputed(scanned: bool) -> None:
    body = jax.checkpoint(layer, prevent_cse=not scanned)

    def loss(x: Any, weights: Any) -> Any:
        if scanned:
            x, _ = jax.lax.scan(lambda x, w: (body(x, w), None), x, weights)
        else:
            for number in range(3):
                x = body(x, jax.tree.map(lambda w, number=number: w[number], weights))
        return (x**2).mean()

    function = jax.value_and_grad(loss, (0, 1))
    got = run(function, "chunk{chunks=4 min_bytes=1KiB}", X, STACKED)
    assert any(region["products"] >= 4 for region in got.regions)
    assert {region["where"] for region in got.regions} == {"in a loop" if scanned else None}
    assert_same(function, got.results, X, STACKED)


def test_layers_of_a_scan_are_left_where_that_is_asked_for() -> None:
    words = normal(384, WIDTH)

    def loss(x: Any, weights: Any, words: Any) -> Any:
        body = jax.checkpoint(layer, prevent_cse=False)
        x, _ = jax.lax.scan(lambda x, w: (body(x, w), None), x, weights)
        return jax.nn.logsumexp(x @ words.T, -1).mean()

    function = jax.value_and_grad(loss, (0, 1, 2))
    values = X, STACKED, words
    got = run(function, "chunk{chunks=4 min_bytes=1KiB layers=off}", *values)
    assert [region["where"] for region in got.regions] == [None]
    assert any(left["why"] == "it is in a loop of the program" for left in got.left)
    both = run(function, "chunk{chunks=4 min_bytes=1KiB}", *values)
    assert {region["where"] for region in both.regions} == {None, "in a loop"}
    assert_same(function, got.results, *values)
