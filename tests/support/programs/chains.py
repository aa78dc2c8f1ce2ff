"""A chain of layers, written out and as a scan: residuals of a straight line and of a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def unrolled(w: Any, x: Any) -> Any:
    for number in range(len(w)):
        x = _layer(x, w[number])
    return (x**2).mean()


def scanned(w: Any, x: Any) -> Any:
    return (jax.lax.scan(lambda x, w: (_layer(x, w), None), x, w)[0] ** 2).mean()


def _layer(x: Any, w: Any) -> Any:
    return x + jnp.tanh(jnp.tanh(x @ w) @ w)
