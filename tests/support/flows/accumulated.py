"""Steps under `accumulate` beside themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hloom


def assert_same(
    function: Any,
    *arguments: Any,
    spec: str = "accumulate{microbatches=2}",
    tolerance: float = 3e-6,
) -> Any:
    """Compares a step with itself under a pass; returns the record."""
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    program = jitted.lower(*arguments)
    wanted = program.compile(compiler_options={"hloom": "off"})(*map(copied, arguments))
    got = program.compile(compiler_options={"hloom": spec})(*map(copied, arguments))
    pairs = [
        (np.asarray(one, np.float64), np.asarray(other, np.float64))
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key)
    ]
    # Some gradients are zero but for rounding, as a bias's before a layer norm.
    largest = max(float(np.abs(other).max(initial=0.0)) for _, other in pairs)
    for one, other in pairs:
        scale = max(float(np.abs(other).max(initial=0.0)), largest / 100)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
    record = hloom.records()[-1]
    assert "microbatches of" in next(run.effect for run in record.runs if run.name == "accumulate")
    return record


def copied(tree: Any) -> Any:
    """What a step may be given for good."""
    return jax.tree.map(jnp.copy, tree)
