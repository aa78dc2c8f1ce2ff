"""Formats of floating-point types, by the numbers that they have."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.passes.ir.types import FloatFormat, float_format, holds

DTYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
NARROW = {"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"}


@pytest.mark.parametrize("name", DTYPES)
def test_a_format_is_that_of_the_dtype(name: str) -> None:
    known = jnp.finfo(DTYPES[name])
    with make_context():
        found = float_format(ir.Type.parse(name))
    assert found == FloatFormat(known.nexp, known.nmant)
    assert found.bits == known.bits


@pytest.mark.parametrize(
    ("wide", "narrow"), list(itertools.product(DTYPES, ["bf16", "f16", *NARROW]))
)
def test_what_holds_a_type_has_all_of_its_numbers(wide: str, narrow: str) -> None:
    dtypes = DTYPES | NARROW
    bits = jnp.finfo(dtypes[narrow]).bits
    codes = np.arange(2**bits).astype(f"uint{bits}")
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = codes.view(jnp.dtype(dtypes[narrow])).astype(np.float64)
        numbers = numbers[np.isfinite(numbers)]
        kept = numbers.astype(jnp.dtype(dtypes[wide])).astype(np.float64)
    with make_context():
        said = holds(ir.Type.parse(wide), ir.FloatType(ir.Type.parse(narrow)))
    exact = bool((kept == numbers).all())
    assert exact or not said
    # Of types of 8 bits that is said of the wide ones alone.
    assert said or not exact or narrow in NARROW
