"""`free-constants` where text does not show it: the numbers stay, its plan, its errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, interpret, programs

from hloom.passes.framework.base import Target
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@drawn(programs)
def test_the_interpreter_agrees_and_nothing_is_left_to_free(program: list[Step]) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    original = jax.jit(gradient(program), keep_unused=True).lower(*arguments).compiler_ir()
    changed = clone_module(original)
    spec = "free-constants{min_bytes=1}"
    Pipeline.parse(spec).run(changed, target=Target())
    for got, wanted in zip(
        interpret(changed, arguments), interpret(original, arguments), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    assert Pipeline.parse(spec).run(changed, target=Target()).runs[-1].empty


def masked_behind_a_barrier(x: jax.Array) -> jax.Array:
    mask = jnp.ones(x.shape, bool)
    return jnp.where(*jax.lax.optimization_barrier((mask, x)), 0.0)


def test_the_plan_tells_operands_and_carries() -> None:
    module = clone_module(jax.jit(masked_behind_a_barrier).lower(normal(4, 4)).compiler_ir())
    run = Pipeline.parse("free-constants").run(module, target=Target()).runs[-1]
    assert run.plan == {"barriers": [{"operands": 2, "freed": [0]}], "loops": []}
    assert run.summary == "1 constant taken out of 1 barrier, 0 out of the carries of 0 loops"


WANTS = "option 'min_bytes' of pass 'free-constants' wants a size in bytes such as 4KiB or 60GiB"


@pytest.mark.parametrize(
    ("given", "units"),
    [
        ("0", "."),
        ("some", ". Units: B, KiB, MiB, GiB, TiB; KB, MB, GB, TB are powers of 1000."),
    ],
)
def test_min_bytes_is_a_size_of_a_byte_at_least(given: str, units: str) -> None:
    spec = f"free-constants{{min_bytes={given}}}"
    with pytest.raises(SpecError) as caught:
        Pipeline.parse(spec)
    message = f"spec='{spec}': {WANTS}, at least 1, got '{given}' (at character 26){units}"
    assert str(caught.value) == message
