"""Random parts of random programs in loops, in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from support.examples import drawn
from support.flows.mixed import WIDTH as MIXED_WIDTH
from support.flows.mixed import mixed_programs, values_of
from support.flows.regions import assert_regions_agree, regions
from support.flows.runs import evaluated, lowered
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, programs

DRAWN = np.random.default_rng(5)
MIXED = [DRAWN.normal(size=(MIXED_WIDTH, MIXED_WIDTH)).astype(np.float32) for _ in range(3)]


@drawn(60)
@given(programs, regions)
def test_parts_of_a_gradient(program: list[Step], regions_drawn: Sequence[Sequence[int]]) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    module = lowered(gradient(program), *arguments)
    assert_regions_agree(module, regions_drawn, arguments, evaluated, tolerance=2e-3)


@drawn(60)
@given(mixed_programs, regions)
def test_parts_of_a_program_of_all_kinds(
    program: list[Step], regions_drawn: Sequence[Sequence[int]]
) -> None:
    def results(given: Any, *values: Any) -> Any:
        products = [value @ jnp.eye(MIXED_WIDTH) for value in values]
        return values_of(program, [given, *products])[-3:]

    module = lowered(results, *MIXED)
    assert_regions_agree(module, regions_drawn, MIXED, evaluated, tolerance=1e-3)
