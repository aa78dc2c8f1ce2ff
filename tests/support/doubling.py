"""A program whose result tells which passes ran on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import hloom

NewRecords = Callable[[], tuple[hloom.CompileRecord, ...]]

X = np.arange(8, dtype=np.float32)


def times_two(x: jax.Array) -> jax.Array:
    """Gives 2 x, or 3 x where replace-two ran on it, which makes 3 of 2."""
    return x * 2.0


def fresh_jit(**options: Any) -> Any:
    """A jit of times_two that has compiled nothing yet."""
    return jax.jit(lambda x: times_two(x), **options)


def factor(result: jax.Array) -> float:
    """By what X was multiplied."""
    # Through numpy: indexing the array would compile, with the flag as it is.
    return float(np.asarray(result)[1])


def with_option(spec: str) -> dict[str, Any]:
    return {"compiler_options": {"hloom": spec}}
