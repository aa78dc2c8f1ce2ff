"""Comparisons of what programs give: of trees of arrays, leaf by leaf."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def assert_equal(got: Any, wanted: Any) -> None:
    """The same elements."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


def assert_allclose(got: Any, wanted: Any, *, rtol: float, atol: float) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def assert_close(got: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    """Trees of one structure, of arrays that differ by a share of the largest element at most."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        largest = float(np.abs(other).max(initial=0))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * largest)
