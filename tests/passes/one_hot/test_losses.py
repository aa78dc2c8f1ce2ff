"""`one-hot` in bfloat16: by XLA no further from exact than without."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from support.losses import LOSSES, NARROW


def distance(one: Any, other: Any) -> float:
    """The largest, of all arrays of a tree."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.float32(a) - np.float32(b)).max()) for a, b in pairs)


@pytest.mark.parametrize("name", ["flat_arange", "narrow"])
def test_xla_gives_no_other_result_in_bfloat16(name: str) -> None:
    loss = LOSSES[name]
    arguments = loss.arguments(NARROW)
    exact = jax.jit(loss.step)(*jax.tree.map(widened, arguments))
    before = jax.jit(loss.step)(*arguments)
    after = jax.jit(loss.step, compiler_options={"hloom": "one-hot"})(*arguments)
    assert distance(after, exact) <= distance(before, exact)


def widened(array: jax.Array) -> jax.Array:
    return array.astype("float32") if array.dtype == "bfloat16" else array
