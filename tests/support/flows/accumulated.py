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
    both = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    known = [pair for pair in both if not jnp.issubdtype(pair[0].dtype, jax.dtypes.prng_key)]
    pairs = [(np.asarray(one, np.float64), np.asarray(other, np.float64)) for one, other in known]
    sizes = [float(np.abs(other).max(initial=0.0)) for _, other in pairs]
    # Some gradients are zero but for rounding, as a bias's before a layer norm. An integer, such as
    # a word of a key, may be larger than all floats, and tells nothing of them.
    floats = [jnp.issubdtype(one.dtype, jnp.inexact) for one, _ in known]
    largest = max(
        (size for size, is_float in zip(sizes, floats, strict=True) if is_float), default=0.0
    )
    for (one, other), size in zip(pairs, sizes, strict=True):
        scale = max(size, largest / 100)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
    record = hloom.records()[-1]
    assert "microbatches of" in next(run.effect for run in record.runs if run.name == "accumulate")
    return record


def copied(tree: Any) -> Any:
    """What a step may be given for good."""
    return jax.tree.map(jnp.copy, tree)
