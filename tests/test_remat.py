"""`remat` on whole programs: results stay, memory and stored residuals go down."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from programs import PROGRAMS, normal, weights

import hloom
from hloom.passes.base import Target
from hloom.passes.pipeline import Pipeline, clone_module

SMALL = "remat{min_bytes=0}"
NOTHING_TO_RECOMPUTE = {
    "nested_scans",
    "user_checkpoint_in_a_scan",
    "user_checkpoint_with_a_mask",
}


def transformed(lowered: Any, spec: str = SMALL) -> tuple[ir.Module, dict[str, Any]]:
    """The lowered module after the pipeline, and the plan of its last step."""
    module = clone_module(lowered.compiler_ir())
    result = Pipeline.parse(spec).run(module, target=Target())
    return module, result.runs[-1].plan


def count(module: ir.Module, operation: str) -> int:
    return module.operation.get_asm().count(operation)


def assert_same(got: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        low_precision = jnp.asarray(one).dtype.itemsize < 4
        np.testing.assert_allclose(
            np.asarray(one, np.complex64),
            np.asarray(other, np.complex64),
            rtol=2e-2 if low_precision else 2e-5,
            atol=2e-2 if low_precision else 2e-6,
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_stay(name: str) -> None:
    function, arguments = PROGRAMS[name]()
    lowered = jax.jit(function).lower(*arguments)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    got = lowered.compile(compiler_options={"hloom": SMALL})(*arguments)
    assert_same(got, wanted)


@pytest.mark.parametrize("name", PROGRAMS)
def test_fires_unless_there_is_nothing_to_recompute(name: str) -> None:
    function, arguments = PROGRAMS[name]()
    _, plan = transformed(jax.jit(function).lower(*arguments))
    fires = bool(plan["blocks"] or plan["scans"])
    assert fires == (name not in NOTHING_TO_RECOMPUTE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_is_once(name: str) -> None:
    function, arguments = PROGRAMS[name]()
    once, _ = transformed(jax.jit(function).lower(*arguments))
    twice = clone_module(once)
    result = Pipeline.parse(SMALL).run(twice, target=Target())
    assert result.runs[-1].summary == "nothing to recompute"


@pytest.mark.parametrize("name", PROGRAMS)
def test_never_repeats_expensive_work(name: str) -> None:
    function, arguments = PROGRAMS[name]()
    lowered = jax.jit(function).lower(*arguments)
    before, _ = transformed(lowered, "inline,cse")
    after, _ = transformed(lowered)
    for operation in ("dot_general", "convolution", "sort", "scatter", "custom_call", "gather"):
        assert count(after, f"stablehlo.{operation}") <= count(before, f"stablehlo.{operation}")
