"""Random differentiated programs: the interpreter and XLA agree before and after `remat`."""

from __future__ import annotations

import warnings

import jax
import numpy as np
from hypothesis import HealthCheck, given, settings
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, interpreter_agrees, programs

SPEC = "remat{min_bytes=0},free-constants{min_bytes=1}"


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(programs)
def test_interpreter_agrees(program: list[Step]) -> None:
    interpreter_agrees(SPEC, program)


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(programs)
def test_compiled_program_agrees(program: list[Step]) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    lowered = jax.jit(gradient(program)).lower(*arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = lowered.compile(compiler_options={"hloom": SPEC})(*arguments)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
