"""Programs that differ from attention in single rows: samples of rows need not have these."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloom

BATCH, LENGTH, HEADS, SIZE, ROW = 2, 64, 2, 8, 37
CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))
IS_ROW = np.arange(LENGTH)[:, None] == ROW
SOME = np.random.default_rng(0).random((BATCH, 1, LENGTH, LENGTH)) < 0.7
SOME[:, :, 5] = False
Array = jax.Array
Attend = Callable[[Array, Array, Array, Array], Array]


def scores(q: Array, k: Array) -> Array:
    return jnp.einsum("bthd,bshd->bhts", q, k) / SIZE**0.5


def mixed(p: Array, v: Array) -> Array:
    return jnp.einsum("bhts,bshd->bthd", p, v)


def causal(s: Array) -> Array:
    return jax.nn.softmax(jnp.where(CAUSAL, s, -1e9))


def no_gradient_in_a_row(q: Array, k: Array, v: Array, bias: Array) -> Array:
    p = causal(scores(q, k))
    return mixed(jnp.where(IS_ROW, jax.lax.stop_gradient(p), p), v)


def an_average_in_a_row(q: Array, k: Array, v: Array, bias: Array) -> Array:
    return mixed(jnp.where(IS_ROW, 1 / LENGTH, causal(scores(q, k))), v)


def a_row_scaled_otherwise(q: Array, k: Array, v: Array, bias: Array) -> Array:
    return mixed(causal(scores(q, k) * jnp.where(IS_ROW, 2.0, 1.0)), v)


def a_bias_outside_of_the_mask(q: Array, k: Array, v: Array, bias: Array) -> Array:
    return mixed(jax.nn.softmax(jnp.where(SOME, scores(q, k), -1e9) + bias), v)


def of_other_keys(forward: Callable[[Array], Array], backward: Callable[[Array], Array]) -> Attend:
    """The gradient of the scores reads other keys than the scores."""

    @jax.custom_vjp
    def scores_of(q: Array, k: Array) -> Array:
        return jnp.einsum("bthd,bshd->bhts", q, forward(k))

    def backwards(kept: tuple[Array, Array], given: Array) -> tuple[Array, Array]:
        dq = jnp.einsum("bhts,bshd->bthd", given, kept[1])
        return dq, jnp.einsum("bhts,bthd->bshd", given, kept[0])

    scores_of.defvjp(lambda q, k: (scores_of(q, k), (q, backward(k))), backwards)
    return lambda q, k, v, bias: mixed(causal(scores_of(q, k) / SIZE**0.5), v)


def row_times(factor: float) -> Callable[[Array], Array]:
    return lambda k: jnp.where(IS_ROW[:, :, None], factor * k, k)


a_gradient_without_a_key = of_other_keys(lambda k: k, row_times(0.0))
a_gradient_of_another_key = of_other_keys(row_times(2.0), row_times(1.5))
a_gradient_of_clipped_keys = of_other_keys(lambda k: k, lambda k: jnp.clip(k, -100, 100))
the_gradient_of_its_keys = of_other_keys(row_times(2.0), row_times(2.0))


def weights_as_a_mask(q: Array, k: Array, v: Array, bias: Array) -> Array:
    seen = CAUSAL.astype("float32")
    return mixed(jax.nn.softmax(scores(q, k) * seen - 1e10 * (1 - seen)), v)


OTHER_KEYS = "the gradient reads other keys than the attention does"
FUSED = "attentions in a kernel: 1, gradients: 1"


@pytest.mark.parametrize(
    ("attend", "summary"),
    [
        (no_gradient_in_a_row, "weights are changed at some positions behind the softmax"),
        (an_average_in_a_row, "weights are changed at some positions behind the softmax"),
        (a_row_scaled_otherwise, "scores are scaled by numbers that differ by position"),
        (a_bias_outside_of_the_mask, "what is added beside its mask may be a mask, too"),
        (a_gradient_without_a_key, OTHER_KEYS),
        (a_gradient_of_another_key, OTHER_KEYS),
        (a_gradient_of_clipped_keys, OTHER_KEYS),
        (the_gradient_of_its_keys, FUSED),
        (weights_as_a_mask, FUSED),
    ],
)
def test_single_rows_count(attend: Callable[..., Array], summary: str) -> None:
    def loss(*given: Array) -> Array:
        return jnp.sum(jnp.sin(attend(*given)))

    shapes = [(BATCH, LENGTH, HEADS, SIZE)] * 3 + [(HEADS, LENGTH, LENGTH)]
    rng = np.random.default_rng(1)
    given = [jnp.asarray(rng.standard_normal(shape), "float32") for shape in shapes]
    step = jax.value_and_grad(loss, (0, 1, 2, 3))
    spec = "attention{kernel=emulated min_keys=1}"
    wanted = jax.jit(step)(*given)
    got = jax.jit(step, compiler_options={"hloom": spec})(*given)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.abs(other).max()))
    assert summary in hloom.records()[-1].runs[-1].summary


def test_constants_with_a_row_of_their_own_are_found_at_any_length() -> None:
    """A causal mask behind which packed sequences lie has no row without a key."""
    length = 4096

    def attend(q: Array, k: Array, v: Array, pack: Array) -> Array:
        seen = (pack[:, None] == pack) & jnp.tril(jnp.ones((length, length), bool))
        return mixed(jax.nn.softmax(jnp.where(seen, scores(q, k), -1e9)), v)

    shapes = [jax.ShapeDtypeStruct((1, length, 1, 8), "bfloat16")] * 3
    pack = jax.ShapeDtypeStruct((length,), "int32")
    spec = "attention{kernel=emulated}"
    jax.jit(attend, compiler_options={"hloom": spec}).lower(*shapes, pack).compile()
    assert "attentions in a kernel: 1" in hloom.records()[-1].runs[-1].summary
