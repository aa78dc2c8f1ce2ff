"""`capture` and `unroll` on programs of every kind: the interpreter has the same bits, XLA:CPU the
same results up to the rounding of what it fuses.

What cuts regions in random programs, which the interpreter has to understand, is loops and
branches: with loops=off they are interruptions, with regions inside them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.programs import PROGRAMS, normal, weights
from support.random_programs import Step, gradient, interpret, programs
from support.remat_runs import plain

import hloom
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

pytestmark = pytest.mark.long

SPECS = ("capture{min_ops=1}", "capture{min_ops=2 loops=off}", "unroll{loops=all},capture")


@pytest.mark.parametrize("spec", SPECS)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(program=programs)
def test_the_interpreter_agrees(spec: str, program: list[Step]) -> None:
    arguments = (normal(3, 4), weights(1, 4)[0])
    original = jax.jit(gradient(program), keep_unused=True).lower(*arguments).compiler_ir()
    changed = clone_module(original)
    Pipeline.parse(spec).run(changed, target=targets.load("h100_sxm"))
    for got, wanted in zip(
        interpret(changed, arguments), interpret(original, arguments), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "name",
    [
        # On the newest version a third of them shows what depends on it: bindings, and XLA.
        pytest.param(name, marks=[pytest.mark.once] * (number % 3 > 0))
        for number, name in enumerate(PROGRAMS)
    ],
)
def test_compiled_programs_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned as if for a GPU, run on the CPU."""
    from hloom.targets import devices

    as_if_on_cuda = dataclasses.replace(Target(), platform="cuda")
    monkeypatch.setattr(devices, "target_of", lambda *_: as_if_on_cuda)
    off = plain(PROGRAMS[name])
    got: Any = None
    for spec in ("capture{min_ops=1}", "unroll{loops=all},capture{min_ops=1 loops=off}"):
        got = off.lowered.compile(compiler_options={"hloom": spec})(*off.arguments)
        assert hloom.records()[-1].fell_back is None
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(off.results), strict=True):
            np.testing.assert_allclose(
                np.asarray(one, "complex64"), np.asarray(other, "complex64"), rtol=1e-2, atol=1e-3
            )
    jax.effects_barrier()
