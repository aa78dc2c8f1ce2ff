"""The comparison of plans and modules between versions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import plan_identity
from hloom import targets


def hashes(function: Any) -> dict[str, str]:
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    module = jax.jit(jax.grad(lambda x: function(x).sum())).lower(x).compiler_ir()
    return dict(plan_identity.hashes_of("f", module, targets.load("h100_sxm")))


def test_the_same_program_has_the_same_hashes() -> None:
    first = hashes(lambda x: jnp.sin(jnp.sin(x) @ x))
    assert plan_identity.differences(first, hashes(lambda x: jnp.sin(jnp.sin(x) @ x))) == []
    assert len(first) == 3 * len(plan_identity.SPECS) - 1  # without remat nothing is after it


def test_another_program_has_others() -> None:
    first = hashes(lambda x: jnp.sin(jnp.sin(x) @ x))
    second = hashes(lambda x: jnp.sin(jnp.cos(x) @ x))
    modules = {key for key in second if "module" in key}
    assert modules <= set(plan_identity.differences(first, second))


def test_what_is_missing_differs() -> None:
    assert plan_identity.differences({"a": "1"}, {"a": "1", "b": "2"}) == ["b"]
