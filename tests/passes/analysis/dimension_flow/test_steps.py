"""Training steps: the batch is found, the loops it takes are counted, and the chunks are right."""

from __future__ import annotations

import pytest
from jax.extend.mlir import ir
from support.flows.cuts import best_cut
from support.flows.runs import assert_chunks_agree, compiled, evaluated, lowered
from support.flows.steps import BATCH, STEPS, FlowStep

CHUNKS = 3
"""Of a batch of 4 the first one is longer."""


@pytest.mark.parametrize("name", STEPS)
def test_the_batch_of_a_step(name: str) -> None:
    case: FlowStep = STEPS[name]()
    module = lowered(case.step, *case.arguments)
    dimension, flow = best_cut(module)
    assert dimension.size == BATCH
    numbers = [ir.BlockArgument(seed.value).arg_number for seed in dimension.seeds]
    assert numbers == case.batch_numbers
    assert len(flow.phases) == case.phases, str(flow)
    assert flow.share == pytest.approx(1.0)
    assert_chunks_agree(
        module,
        flow,
        case.arguments,
        count=CHUNKS,
        tolerance=2e-5,
        evaluate=evaluated if case.interpreted else compiled,
    )
