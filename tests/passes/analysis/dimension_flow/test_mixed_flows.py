"""Random programs of all kinds, of which axes of several arguments are one dimension."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.examples import drawn
from support.flows.mixed import WIDTH, Step, mixed_programs, values_of
from support.flows.runs import assert_chunks_agree, flow_of, lowered

from hloom.passes.analysis.signatures.signature import AxisLayout

DRAWN = np.random.default_rng(5)
ARGUMENTS = [DRAWN.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(3)]

PARTS = [(1, WIDTH, 1), (1, 2, 2), (2, 2, 1)]
"""How the dimension lies in its axes: the whole of it, the major or the minor half."""


@drawn(80)
@given(
    mixed_programs,
    st.sampled_from(PARTS),
    st.dictionaries(st.integers(0, 2), st.integers(0, 1), min_size=1, max_size=2),
    st.sampled_from([2, 3]),
)
def test_chunks_give_what_the_whole_gives(
    program: list[Step], part: tuple[int, int, int], axes: dict[int, int], count: int
) -> None:
    def results(given: Any, *values: Any) -> Any:
        products = [value @ jnp.eye(WIDTH) for value in values]  # are made in a loop
        return values_of(program, [given, *products])[-3:]

    module = lowered(results, *ARGUMENTS)
    flow = flow_of(module, *[(number, AxisLayout(axis, *part)) for number, axis in axes.items()])
    count = min(count, part[1])
    assert_chunks_agree(module, flow, tuple(ARGUMENTS), count=count, tolerance=1e-3)
