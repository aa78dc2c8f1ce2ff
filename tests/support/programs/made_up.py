"""Arguments for programs of which only the shapes are known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def made_up(shapes: Any) -> Any:
    """Numbers of a sensible size, and tokens that every vocabulary has."""
    random = np.random.default_rng(0)

    def leaf(info: Any) -> jax.Array:
        if jnp.issubdtype(info.dtype, jnp.integer):
            return jnp.asarray(random.integers(0, 16, info.shape), info.dtype)
        return jnp.asarray(random.standard_normal(info.shape) / 4, jnp.float32)

    return jax.tree.map(leaf, shapes, is_leaf=lambda node: hasattr(node, "shape"))
