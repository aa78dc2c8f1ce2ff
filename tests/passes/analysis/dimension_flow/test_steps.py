"""Training steps: the batch is found, the loops it takes are counted, and the chunks are right."""

from __future__ import annotations

import pytest
from jax.extend.mlir import ir
from support.flows.runs import assert_chunks_agree, compiled, evaluated, lowered
from support.flows.steps import BATCH, STEPS, FlowStep

from hloom.passes.analysis.dimension_flow.candidates import DimensionCandidate, candidates
from hloom.passes.analysis.dimension_flow.program import FlowProgram

CHUNKS = 3
"""Of a batch of 4 the first one is longer."""


def found_in(module: ir.Module) -> DimensionCandidate:
    return candidates(FlowProgram.of(module))[0]


@pytest.mark.parametrize("name", STEPS)
def test_the_batch_of_a_step(name: str) -> None:
    case: FlowStep = STEPS[name]()
    module = lowered(case.step, *case.arguments)
    found = found_in(module)
    assert found.dimension.size == BATCH
    numbers = [ir.BlockArgument(seed.value).arg_number for seed in found.dimension.seeds]
    assert numbers == case.batch_numbers
    assert found.phases == case.phases, str(found.flow)
    assert found.share == pytest.approx(1.0)
    assert_chunks_agree(
        module,
        found.flow,
        case.arguments,
        count=CHUNKS,
        tolerance=2e-5,
        evaluate=evaluated if case.interpreted else compiled,
    )
