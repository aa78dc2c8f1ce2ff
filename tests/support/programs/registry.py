"""What registers the programs of tests, and their arguments: of order one, from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Program = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]

PROGRAMS: dict[str, Program] = {}


def program(make: Program) -> Program:
    PROGRAMS[make.__name__] = make
    return make


def gradient(
    arguments: Callable[[], tuple[Any, ...]],
    argnums: int | tuple[int, ...] = 0,
    programs: dict[str, Program] = PROGRAMS,
) -> Callable[[Callable[..., Any]], None]:
    """Makes a loss a program by its name: its value and gradient, with these arguments."""

    def register(loss: Callable[..., Any]) -> None:
        programs[loss.__name__] = lambda: (jax.value_and_grad(loss, argnums), arguments())

    return register


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def weights(layers: int = 4, width: int = 16, dtype: Any = np.float32) -> Any:
    return normal(layers, width, width, seed=1, dtype=dtype) / np.sqrt(width).astype(dtype)
