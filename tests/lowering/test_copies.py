"""The compile options of programs whose loops load from the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hloom import targets
from hloom.lowering.copies import ASYNC_LIMIT, compile_options
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.ir.clone import clone_module

SPEC = "offload{min_bytes=1 exposed=1e9}"


def test_the_limit_is_raised_by_the_loads_of_a_loop() -> None:
    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0].sum()

    ws, x = jnp.ones((4, 8, 8)), jnp.ones((8, 8))
    module = clone_module(jax.jit(jax.grad(loss)).lower(ws, x).compiler_ir())
    assert compile_options(module, "cuda") == {}
    result = Pipeline.parse(SPEC).run(module, target=targets.load("h100_sxm"))
    loads = len(rows_of(result.runs[-1].plan, "Stacks on the host"))
    assert loads > 0
    assert compile_options(module, "cuda") == {ASYNC_LIMIT: 2 + loads}
    assert compile_options(module, "cpu") == {}
