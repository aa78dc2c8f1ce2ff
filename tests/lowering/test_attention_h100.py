"""Attention compiled for an H100, without one; and, on a GPU, beside float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloom
from benchmarks.attention_rounding import HEAD, HEADS, LENGTH, WAYS
from benchmarks.programs.attentions import Model, _decoder, _fused_decoder
from hloom._jax.executables import memory_figures
from hloom.targets import deviceless

pytestmark = pytest.mark.long


@pytest.mark.h100
@pytest.mark.parametrize("scanned", [False, True], ids=["line", "scan"])
def test_a_model_takes_what_it_takes_by_hand(scanned: bool) -> None:
    deviceless.prepare()
    model, placement = Model(512, _decoder, _fused_decoder, scanned=scanned), "h100_sxm"
    found = model.lower(deviceless.placement(placement)).compile({"hloom": "attention"})
    with deviceless.attention_lowered_for(placement):
        by_hand = model.lower(deviceless.placement(placement), fused=True)
    off = by_hand.compile({"hloom": "off"})
    mine, theirs = (
        memory_figures(each.runtime_executable()).temp_bytes or 0 for each in (found, off)
    )
    assert mine <= 1.05 * theirs
    assert found.as_text().count("__cudnn$fmhaSoftmax") == off.as_text().count(
        "__cudnn$fmhaSoftmax"
    )


@pytest.mark.h100
def test_fit_takes_attention_first_where_it_is_named() -> None:
    deviceless.prepare()
    model = Model(512, _decoder, _fused_decoder, scanned=True)
    lowered = model.lower(deviceless.placement("h100_sxm"))
    lowered.compile({"hloom": "fit{moves=recompute+attention}"})
    assert "1 attention in a fused kernel" in hloom.records()[-1].runs[-1].summary


def drawn(element: str, times: int) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    factors = (times**0.5, times**0.5, 1.0, 1.0)
    return [
        jnp.asarray(rng.standard_normal((2, LENGTH, HEADS, HEAD)) * factor, element)
        for factor in factors
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("element", ["bfloat16", "float16"])
@pytest.mark.parametrize("way", [way for way, (_, spec) in WAYS.items() if spec == "off"])
def test_the_kernel_is_as_its_definition(way: str, element: str) -> None:
    attend, _ = WAYS[way]

    def both(*given: jax.Array) -> tuple[jax.Array, ...]:
        output, backward = jax.vjp(attend, *given[:3])
        return (output, *backward(given[3]))

    found = [
        jax.jit(both, compiler_options={"hloom": f"attention{{kernel={kernel}}}"})(
            *drawn(element, 1)
        )
        for kernel in ("cudnn", "emulated", "cudnn")
    ]
    for kernel, emulated, again in zip(*found, strict=True):
        one, other = (np.asarray(each, np.float64) for each in (kernel, emulated))
        assert np.linalg.norm(one - other) <= 0.01 * np.linalg.norm(other)
        np.testing.assert_array_equal(kernel, again)


@pytest.mark.gpu
def test_a_row_without_a_key_keeps_its_gradients() -> None:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
        scores = jnp.einsum("btnh,bsnh->bnts", q, k).astype("float32") / HEAD**0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(q.dtype)
        mixed = jnp.einsum("bnts,bsnh->btnh", weights, v)
        return jnp.sum(jnp.square(mixed.astype("float32")))

    *given, _ = drawn("bfloat16", 1)
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool)).at[3].set(False)[None, None]
    step = jax.grad(loss, (0, 1, 2))
    kernel, emulated = (
        jax.jit(step, compiler_options={"hloom": f"attention{{kernel={name}}}"})(*given, seen)
        for name in ("cudnn", "emulated")
    )
    for one, other in zip(kernel, emulated, strict=True):
        exact = np.asarray(other, np.float64)
        error = np.linalg.norm(np.asarray(one, np.float64) - exact)
        assert error <= 0.02 * np.linalg.norm(exact)
