"""Random differentiated programs give what they gave, with any of their values in chunks."""

from __future__ import annotations

import jax
import numpy as np
from hypothesis import HealthCheck, given, settings
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, interpret, programs

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

LOOPS: list[int] = []
"""Of each program how many regions run in chunks."""


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(programs)
def interpreter_agrees(program: list[Step]) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    original = jax.jit(gradient(program), keep_unused=True).lower(*arguments).compiler_ir()
    changed = clone_module(original)
    result = Pipeline.parse("chunk{chunks=3 min_bytes=1}").run(changed, target=Target())
    LOOPS.append(len(result.runs[-1].plan["regions"]))  # type: ignore[arg-type]
    pairs = zip(interpret(changed, arguments), interpret(original, arguments), strict=True)
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_interpreter_agrees() -> None:
    interpreter_agrees()
    assert sum(map(bool, LOOPS)) >= 5
