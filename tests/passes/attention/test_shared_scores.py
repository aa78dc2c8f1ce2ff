"""Scores, weights and gradients that more than one attention reads: none is taken for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloom

BATCH, LENGTH, HEADS, SIZE = 2, 16, 2, 8
CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))
NEAR = CAUSAL & ~np.tril(np.ones((LENGTH, LENGTH), bool), -4)
Array = jax.Array


def scores(q: Array, k: Array) -> Array:
    return jnp.einsum("bthd,bshd->bhts", q, k) / SIZE**0.5


def weights(s: Array, seen: Any) -> Array:
    return jax.nn.softmax(jnp.where(seen, s, -1e9))


def mixed(p: Array, v: Array) -> Array:
    return jnp.einsum("bhts,bshd->bthd", p, v)


def other_values_without_a_gradient(q: Array, k: Array, v: Array, other: Array) -> Any:
    def loss(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        p = weights(scores(q, k), CAUSAL)
        return jnp.sum(jnp.sin(mixed(p, v))), jax.lax.stop_gradient(mixed(p, other))

    return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)


def two_masks(q: Array, k: Array, v: Array, other: Array) -> Any:
    s = scores(q, k)
    return mixed(weights(s, CAUSAL), v), mixed(weights(s, NEAR), other)


def two_values(q: Array, k: Array, v: Array, other: Array) -> Any:
    def loss(*given: Array) -> Array:
        q, k, v, other = given
        p = weights(scores(q, k), CAUSAL)
        return jnp.sum(jnp.sin(mixed(p, v))) + jnp.sum(jnp.square(mixed(p, other)))

    return jax.value_and_grad(loss, (0, 1, 2, 3))(q, k, v, other)


@jax.custom_vjp
def doubled(p: Array, v: Array) -> Array:
    return mixed(p, v)


def _forward(p: Array, v: Array) -> tuple[Array, tuple[Array, Array]]:
    return mixed(p, v), (p, v)


def _backward(kept: tuple[Array, Array], given: Array) -> tuple[Array, Array]:
    p, v = kept
    return (jnp.einsum("bthd,bshd->bhts", given, v), jnp.einsum("bhts,bthd->bshd", 2 * p, given))


doubled.defvjp(_forward, _backward)


def a_gradient_of_doubled_weights(q: Array, k: Array, v: Array, other: Array) -> Any:
    def loss(q: Array, k: Array, v: Array) -> Array:
        return jnp.sum(jnp.sin(doubled(weights(scores(q, k), CAUSAL), v)))

    return jax.value_and_grad(loss, (0, 1, 2))(q, k, v)


ANOTHER = "its scores are those of another attention, too"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (other_values_without_a_gradient, ANOTHER),
        (two_masks, ANOTHER),
        (two_values, "more than two products of scores meet"),
        (a_gradient_of_doubled_weights, "the product that gives the values' gradient is not there"),
    ],
)
def test_an_attention_is_not_taken_for_another(step: Callable[..., Any], reason: str) -> None:
    rng = np.random.default_rng(0)
    shape = BATCH, LENGTH, HEADS, SIZE
    given = [jnp.asarray(rng.standard_normal(shape), "float32") for _ in range(4)]
    spec = "attention{kernel=emulated min_keys=1}"
    wanted = jax.jit(step)(*given)
    got = jax.jit(step, compiler_options={"hloom": spec})(*given)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert hloom.records()[-1].runs[-1].summary == f"1 attention left: {reason}"
