"""Comparing gradients of programs that are compiled apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def assert_close(got: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    """Trees of one structure, of arrays that differ by a share of the largest element at most."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        scale = float(jnp.abs(other).max()) if other.size else 0.0
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
