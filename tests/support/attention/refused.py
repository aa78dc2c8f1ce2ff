"""What looks like attention and is none that a kernel computes, with the reason that is given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from support.attention.runs import Way
from support.attention.ways import (
    BATCH,
    HEADS,
    LENGTH,
    ROOT,
    SIZE,
    by_position,
    causal,
    loss,
    normal,
    plain,
)

NO_SOFTMAX = "its weights are no softmax of the scores along the keys"
NOT_ONLY_SCALED = "the scores are not only scaled, shifted and masked before the softmax"
NO_GRADIENT = "the gradient of the scores is not that of a softmax"
EMPTY = "rows without a key are no average of the values"

REFUSED: dict[str, tuple[Callable[[], Way], str]] = {}


def refused(
    reason: str, of: Callable[..., Way] | None = None, *more: Any
) -> Callable[[Callable[..., Any]], Callable[[], Way]]:
    """Of a reason, "" where nothing is said: it does not look like attention. What is decorated
    gives a way, or is a function that ``of`` makes one of."""

    def register(made: Callable[..., Any]) -> Callable[[], Way]:
        make = made if of is None else functools.partial(of, made, *more)
        REFUSED[made.__name__] = make, reason
        return make

    return register


def _whole(function: Callable[..., Any], *more: Any) -> Way:
    return Way(function, by_position(*more), 0, 0)


def _of_masks(function: Callable[..., Any], *more: Any) -> Way:
    return _whole(plain(function), *more)


def _of_scores(function: Callable[..., Any], *more: Any) -> Way:
    """The usual einsums, with a function from scaled scores to weights."""

    def whole(q: Any, k: Any, v: Any, w: Any, *more: Any) -> jax.Array:
        p = function(jnp.einsum("bthd,bshd->bhts", q, k) * ROOT, *more)
        return loss(jnp.einsum("bhts,bshd->bthd", p, v), w)

    return _whole(whole, *more)


@refused(NOT_ONLY_SCALED)
def cap() -> Way:
    return Way(plain(lambda a: jnp.where(causal(), 5 * jnp.tanh(a / 5), -1e9)), by_position(), 0, 0)


@refused(NOT_ONLY_SCALED)
def clip_of_low_scores() -> Way:
    """Which shows where a row has no others."""
    return Way(plain(lambda a: jnp.maximum(a, -1e4)), by_position(), 0, 0)


@refused(NOT_ONLY_SCALED)
def mask_of_the_scores() -> Way:
    return Way(plain(lambda a: jnp.where(a > 0, a, -1e9)), by_position(), 0, 0)


@refused(NOT_ONLY_SCALED, _of_masks, np.full((BATCH, LENGTH), 7, np.int32))
def scale_by_a_rare_integer(a: Any, kind: Any) -> jax.Array:
    return jnp.where((kind == 7)[:, None, None], 2 * a, a)


@refused(NOT_ONLY_SCALED)
def clip() -> Way:
    return Way(plain(lambda a: jnp.clip(a, -1e4, 1e4)), by_position(), 0, 0)


@refused(NO_SOFTMAX, _of_scores, np.zeros(2, np.uint32))
def dropout(a: Any, key: Any) -> jax.Array:
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, a.shape)
    return jnp.where(kept, jax.nn.softmax(a) / 0.9, 0)


@refused(NO_SOFTMAX, _of_scores)
def one_more_in_the_sum(a: Any) -> jax.Array:
    e = jnp.exp(a)
    return e / (1 + e.sum(-1, keepdims=True))


def _behind_the_exponential(
    change: Callable[[Any, Any], Any], axis: Any = -1, more: Any = 0
) -> Way:
    def weights(a: Any) -> Any:
        e = change(jnp.exp(a - a.max(axis, keepdims=True)), a)
        return e / (e.sum(-1, keepdims=True) + more)

    return _of_scores(weights)


@refused(NOT_ONLY_SCALED, _of_scores)
def exponentials_of_low_scores(a: Any) -> jax.Array:
    return (e := jnp.exp(a) * (a < 1)) / e.sum(-1, keepdims=True)


@refused(NOT_ONLY_SCALED, _behind_the_exponential)
def large_exponentials(e: Any, a: Any) -> jax.Array:
    return jnp.where(e > 0.1, e, 0)


@refused(NOT_ONLY_SCALED, _behind_the_exponential)
def powers_of_exponentials(e: Any, a: Any) -> jax.Array:
    return e**1.5 * causal()


@refused(NO_SOFTMAX, _behind_the_exponential, -2)
def less_the_maximum_of_a_key(e: Any, a: Any) -> jax.Array:
    return e * causal()


@refused(NO_SOFTMAX, _behind_the_exponential, (-1, -2))
def less_the_maximum_of_all_rows(e: Any, a: Any) -> jax.Array:
    return e * causal()


@refused(NO_SOFTMAX)
def a_mask_by_the_maximum() -> Way:
    return _behind_the_exponential(
        lambda e, a: e * jnp.where(a.max(-1, keepdims=True) > 1.5, 1, causal())
    )


@refused(NO_SOFTMAX)
def a_little_in_the_sum_of_masked_exponentials() -> Way:
    """The maximum may be masked, so that what is left is as little."""
    return _behind_the_exponential(lambda e, a: e * causal(), more=1e-9)


@refused(NO_SOFTMAX, _of_scores, np.random.default_rng(0).random((BATCH, LENGTH)) < 0.7)
def masked_exponentials_that_may_vanish(a: Any, m: Any) -> jax.Array:
    """Where a row's largest score is masked, nothing may be left of the others."""
    first = jnp.asarray(np.arange(LENGTH) == 0)
    e = jnp.exp(a - a.max(-1, keepdims=True)) * (m[:, None, None] | first)
    total = e.sum(-1, keepdims=True)
    return e / jnp.where(total == 0, 1, total)


@refused("", _of_scores, normal(HEADS))
def sinks(a: Any, sink: Any) -> jax.Array:
    column = jnp.broadcast_to(sink[None, :, None, None], (BATCH, HEADS, LENGTH, 1))
    return jax.nn.softmax(jnp.concatenate([a, column], -1))[..., :-1]


def _of_heads(function: Callable[..., Any], *more: Any) -> Way:
    """Weights that are multiplied by a number of each head."""

    def weights(a: Any, *more: Any) -> Any:
        return jnp.einsum("...hqk,h->...hqk", jax.nn.softmax(a), function(*more))

    return _of_scores(weights, *more)


@refused(NO_SOFTMAX)
def heads_that_are_learnt() -> Way:
    return _of_heads(lambda m: m, normal(HEADS))


@refused(NO_SOFTMAX)
def heads_that_do_not_count() -> Way:
    return _of_heads(lambda: (jnp.arange(HEADS) != 0.0).astype(np.float32))


@refused("")
def sigmoid() -> Way:
    return _of_scores(lambda a: jax.nn.sigmoid(a - 5.0))


@refused(NO_GRADIENT, _whole)
def weights_that_are_a_result(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) * ROOT)
    return loss(jnp.einsum("bhts,bshd->bthd", p, v), w) + (p * p).sum()


@jax.custom_vjp
def _seen(a: Any, least: Any) -> Any:
    return a


_seen.defvjp(lambda a, least: (a, None), lambda _, da: (da, jnp.sort(da)[..., 0].sum()))


@refused("the gradient of its scores is read elsewhere, too")
def gradient_that_is_read() -> Way:
    return Way(plain(_seen), by_position(np.float32(1)), 0, 0)


@refused("its weights are read elsewhere, too", _whole, np.ones(2, np.int32))
def weights_that_are_read_forward_only(q: Any, k: Any, v: Any, w: Any, weigh: Any) -> jax.Array:
    p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) * ROOT)
    out = loss(jnp.einsum("bhts,bshd->bthd", p, v), w)
    return out + jax.lax.stop_gradient(jnp.max(p) * weigh.sum())


@refused("an operand of its gradient is made after a product of it")
def over_the_queries() -> Way:
    return _of_scores(lambda a: jax.nn.softmax(a, -2))


@refused(EMPTY, _of_scores, np.random.default_rng(0).random((BATCH, LENGTH, LENGTH)) < 0.5)
def nothing_where_nothing_is_seen(a: Any, m: Any) -> jax.Array:
    return jnp.where(m[:, None], jax.nn.softmax(jnp.where(m[:, None], a, -1e9)), 0)


@refused(NOT_ONLY_SCALED)
def learnt_temperature() -> Way:
    return _of_scores(
        lambda a, t: jax.nn.softmax(a * jnp.exp(t)[None, :, None, None]), normal(HEADS)
    )


@refused(NOT_ONLY_SCALED, _of_scores)
def largest_scores(a: Any) -> jax.Array:
    return jax.nn.softmax(jnp.where(a >= jax.lax.top_k(a, 4)[0][..., -1:], a, -1e9))


@refused("its scores are scaled by numbers that differ by position", _of_scores)
def scale_by_query(a: Any) -> jax.Array:
    return jax.nn.softmax(a * jnp.log(jnp.arange(LENGTH) + 2.0)[:, None])


@refused("", _whole, normal(BATCH, LENGTH, HEADS, SIZE, scale=0.7))
def two_products(q: Any, k: Any, v: Any, w: Any, r: Any) -> jax.Array:
    a = jnp.einsum("bthd,bshd->bhts", q, k) + jnp.einsum("bthd,bshd->bhts", q, r)
    return loss(jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(a * ROOT), v), w)


@refused(NO_GRADIENT)
def gradient_that_is_halved() -> Way:
    @jax.custom_vjp
    def softmax(a: Any) -> jax.Array:
        return jax.nn.softmax(a)

    def back(p: Any, g: Any) -> tuple[jax.Array]:
        return (0.5 * p * (g - (p * g).sum(-1, keepdims=True)),)

    softmax.defvjp(lambda a: (softmax(a), softmax(a)), back)
    return _of_scores(softmax)


@refused(NO_GRADIENT)
def gradient_that_is_clipped() -> Way:
    @jax.custom_vjp
    def clipped(a: Any) -> jax.Array:
        return a

    clipped.defvjp(lambda a: (a, None), lambda _, g: (jnp.clip(g, -1e3, 1e3),))
    return _of_scores(lambda a: jax.nn.softmax(clipped(a)))


@refused("the gradient of the scores is changed at some positions")
def gradient_of_another_mask() -> Way:
    @jax.custom_vjp
    def softmax(a: Any) -> jax.Array:
        return jax.nn.softmax(jnp.where(causal(), a, -1e9))

    def back(p: Any, g: Any) -> tuple[jax.Array]:
        p = jnp.where(jnp.arange(LENGTH)[:, None] > jnp.arange(LENGTH), p, 0)
        return (p * (g - (p * g).sum(-1, keepdims=True)),)

    softmax.defvjp(lambda a: (softmax(a), softmax(a)), back)
    return _of_scores(softmax)


def _one_row() -> jax.Array:
    """True in one of 48 rows of keys, which no sample has by chance."""
    rows = jnp.arange(BATCH * HEADS * LENGTH).reshape(BATCH, HEADS, LENGTH, 1)
    return rows == 31


@refused(NO_GRADIENT)
def gradient_that_stops_at_one_row() -> Way:
    return _of_scores(lambda a: jax.nn.softmax(jnp.where(_one_row(), jax.lax.stop_gradient(a), a)))


@refused(NO_GRADIENT, _of_scores)
def gradient_that_is_blended_out_of_one_row(a: Any) -> jax.Array:
    kept = 1.0 - _one_row()
    return jax.nn.softmax(a * kept + jax.lax.stop_gradient(a) * (1.0 - kept))


@refused("its weights are changed at some positions behind the softmax", _of_scores)
def weights_without_one_row(a: Any) -> jax.Array:
    """By numbers that the scores have, too."""
    numbers = _one_row().astype(a.dtype)
    p = jax.nn.softmax(a + numbers)
    return p - p * numbers


def _of_other_keys(read_back: Callable[[Any, Any], Any]) -> Way:
    """The queries' gradient reads a function of the keys, and of an argument like them."""

    @jax.custom_vjp
    def scores(q: Any, k: Any, r: Any) -> jax.Array:
        return jnp.einsum("bthd,bshd->bhts", q, k)

    def back(kept: Any, g: Any) -> Any:
        q, k, r = kept
        dq = jnp.einsum("bhts,bshd->bthd", g, read_back(k, r))
        return dq, jnp.einsum("bhts,bthd->bshd", g, q), jnp.zeros_like(r)

    scores.defvjp(lambda q, k, r: (scores(q, k, r), (q, k, r)), back)

    def function(q: Any, k: Any, v: Any, w: Any, r: Any) -> jax.Array:
        p = jax.nn.softmax(scores(q, k, r) * ROOT)
        return loss(jnp.einsum("bhts,bshd->bthd", p, v), w)

    return Way(function, by_position(normal(BATCH, LENGTH, HEADS, SIZE, scale=0.7)), 0, 0)


OTHER_KEYS = "the gradient reads other keys than the attention does"


@refused(OTHER_KEYS, _of_other_keys)
def gradient_of_other_keys(k: Any, r: Any) -> jax.Array:
    return r


@refused(OTHER_KEYS, _of_other_keys)
def gradient_of_keys_without_large_numbers(k: Any, r: Any) -> jax.Array:
    return jnp.maximum(k, -1e8)


@refused("the product that gives the values' gradient is not there")
def gradient_of_other_outputs() -> Way:
    """The values' gradient reads another gradient of the output than the weights' does."""

    @jax.custom_vjp
    def combined(p: Any, v: Any) -> jax.Array:
        return jnp.einsum("bhts,bshd->bthd", p, v)

    def back(kept: Any, g: Any) -> Any:
        p, v = kept
        dp = jnp.einsum("bthd,bshd->bhts", g, v)
        return dp, jnp.einsum("bhts,bthd->bshd", p, jnp.tanh(g))

    combined.defvjp(lambda p, v: (combined(p, v), (p, v)), back)

    def function(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
        return loss(combined(jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k)), v), w)

    return Way(function, by_position(), 0, 0)


@refused("nothing reads its output")
def gradient_of_values_alone() -> Way:
    def function(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
        p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) * ROOT)
        return jnp.einsum("bhts,bthd->bshd", p, w.reshape(q.shape))

    return Way(function, by_position(), 1, 0)  # the function itself


@refused(
    "what is added beside its mask may be a mask, too: rows without a key would have another "
    "gradient",
    _of_masks,
    normal(1, HEADS, LENGTH, LENGTH),
)
def bias_without_a_gradient_inside_of_a_mask(a: Any, bias: Any) -> jax.Array:
    return jnp.where(causal(), a + jax.lax.stop_gradient(bias), -1e9)


@refused("its mask is made in the loop")
def mask_of_each_layer() -> Way:
    def function(x: Any, weights: Any, biases: Any, w: Any) -> jax.Array:
        def layer(x: Any, each: Any) -> Any:
            u, bias = each
            a = jnp.einsum("btd,bsd->bts", x @ u, x) * ROOT + bias
            return x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(a), x), None

        return loss(jax.lax.scan(layer, x, (weights, biases))[0], w)

    x, w = normal(BATCH, LENGTH, SIZE), normal(BATCH, LENGTH, SIZE, scale=0.5)
    weights = normal(3, SIZE, SIZE, scale=0.3), normal(3, LENGTH, LENGTH)
    return Way(function, (x, *weights, w), 0, 0)
