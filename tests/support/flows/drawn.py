"""Programs of one operation, of which each operand is whole, split, or partial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from hloom.passes.analysis.signatures.signature import AxisLayout
from support.flows.operations import F32, SIZE, Draw, Operation

REDUCTIONS = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}


@dataclass
class Drawn:
    """A program of one operation, its arguments, and where the dimension is in them."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    places: list[tuple[int, AxisLayout]]


def numbers(shape: Sequence[int], dtype: Any, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(-3, 4, tuple(shape))
    return drawn.astype(dtype)


def layouts(shape: Sequence[int]) -> list[AxisLayout]:
    """All ways in which the dimension can lie in an axis."""
    return [
        AxisLayout(axis, outer, SIZE, length // SIZE // outer)
        for axis, length in enumerate(shape)
        for outer in range(1, length // SIZE + 1)
        if length % (SIZE * outer) == 0
    ]


def drawn_program(draw: Draw, operation: Operation) -> Drawn:
    function, operands = operation
    arguments, places, prepared = [], [], []
    chosen = draw(st.integers(0, len(operands) - 1))
    for number, (shape, dtype) in enumerate(operands):
        choices: list[Any] = [*layouts(shape)]
        if dtype is F32:
            choices += REDUCTIONS
        wanted = choices and (number == chosen or draw(st.booleans()))
        choice = draw(st.sampled_from(choices)) if wanted else "whole"
        if isinstance(choice, AxisLayout):
            places.append((number, choice))
        reduction = REDUCTIONS.get(choice) if isinstance(choice, str) else None
        if reduction is not None:
            shape = (SIZE, *shape)
            places.append((number, AxisLayout(0, 1, SIZE, 1)))
        prepared.append(reduction)
        arguments.append(numbers(shape, dtype, number))

    def program(*values: Any) -> Any:
        read = [
            value if reduction is None else reduction(value, 0)
            for value, reduction in zip(jax.lax.optimization_barrier(values), prepared, strict=True)
        ]
        return function(*read)

    return Drawn(program, tuple(arguments), places)
