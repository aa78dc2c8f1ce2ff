"""The promises about a GPT compiled for an H100, on machines with JAX's CUDA plugin and no GPU."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support import often

from benchmarks.common.h100 import Measurement, measure, placement
from benchmarks.common.products import executed_products
from benchmarks.common.subjects import SUBJECTS
from benchmarks.programs.gpt import Gpt

GPTS = {
    "unrolled": Gpt(scanned=False, layers=4),
    "scanned": Gpt(scanned=True),
    "scanned-bfloat16": Gpt(scanned=True, softmax_dtype="bfloat16", gains=True),
    "unrolled-bfloat16": Gpt(scanned=False, layers=4, softmax_dtype="bfloat16", gains=True),
}
"""The scanned ones have 12 layers. Each layer of an unrolled one takes seconds to compile, and is
like the others: benchmarks compile 12."""


@functools.cache
def lowered(name: str) -> Any:
    if name in GPTS:
        return GPTS[name].lower(placement())
    return SUBJECTS[name].lower(None, placement())


@functools.cache
def measured(name: str, spec: str) -> Measurement:
    """What a program takes: compiled once for the tests that ask for it."""
    return measure(lowered(name), spec)


@pytest.mark.h100
@pytest.mark.parametrize("name", [*GPTS][: often(2, 4)])
def test_memory_falls_and_no_product_is_repeated(name: str) -> None:
    before, after = measured(name, "off"), measured(name, "remat")
    assert after.temp_bytes <= (0.38 if GPTS[name].scanned else 0.6) * before.temp_bytes
    assert after.products <= before.products


@pytest.mark.h100
@pytest.mark.parametrize("name", ["scanned", "two_level_scan", "unrolled"][: often(2, 3)])
def test_a_budget_holds(name: str) -> None:
    budget_bytes = measured(name, "off").step_bytes // 3 * 2
    found = measure(lowered(name), f"remat{{budget={budget_bytes}}}")
    assert found.complaint is None
    assert found.step_bytes <= budget_bytes


def products(function: Any, *arguments: Any) -> int:
    return executed_products(jax.jit(function).lower(*arguments).compiler_ir())


def test_products_are_counted_through_loops_and_calls() -> None:
    x = jnp.ones((4, 4))
    inner = jax.jit(lambda x: x @ x)
    assert products(lambda x: x @ x, x) == 1
    assert products(lambda x: x + x, x) == 0
    assert products(lambda x: inner(inner(x)), x) == 2
    assert products(lambda x: jax.lax.scan(lambda c, _: (inner(c), None), x, length=7)[0], x) == 7
    layers = jnp.ones((3, 4, 4))
    stacked = jax.grad(lambda w: jax.lax.scan(lambda c, w: (c @ w, None), x, w)[0].sum())
    assert products(stacked, layers) == 3 * 3


def test_a_loop_of_unknown_length_is_refused() -> None:
    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x)

    with pytest.raises(ValueError, match="loop"):
        products(loop, jnp.ones((4, 4)))


def test_the_policies_repeat_products() -> None:
    plain = Gpt(scanned=True, layers=2, width=16, heads=2, vocabulary=32, batch=2, sequence=8)
    kept = executed_products(plain.lower().compiler_ir())
    nothing = Gpt(**{**vars(plain), "policy": "nothing_saveable"})
    assert kept == 2 * 6 * 3 + 3
    assert executed_products(nothing.lower().compiler_ir()) > kept


@pytest.mark.h100
@pytest.mark.parametrize(
    "name", ["llama", "mixture_of_experts", "lstm", "unet", "resnet"][: often(4, 5)]
)
def test_no_program_gets_bigger_or_repeats_a_product(name: str) -> None:
    before, after = measured(name, "off"), measured(name, "remat")
    assert after.temp_bytes < 0.8 * before.temp_bytes
    assert after.products <= before.products
