"""Gradients of random programs, cut along a random axis of an argument, in the interpreter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.examples import drawn
from support.flows.runs import assert_chunks_agree, flow_of, lowered
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, programs

CUTS = [(0, 0), (0, 1), (1, 0), (1, 1)]
"""The axes of x and of w."""


@drawn(60)
@given(programs, st.sets(st.sampled_from(CUTS), min_size=1, max_size=2), st.sampled_from([2, 3]))
def test_chunks_give_what_the_whole_gives(
    program: list[Step], cuts: set[tuple[int, int]], count: int
) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    module = lowered(gradient(program), *arguments)
    lengths = {arguments[number].shape[axis] for number, axis in cuts}
    places = sorted({number: (number, axis) for number, axis in sorted(cuts)}.values())
    if len(lengths) > 1:
        places = places[:1]
    flow = flow_of(module, *places)
    assert_chunks_agree(module, flow, arguments, count=count, tolerance=2e-3)
