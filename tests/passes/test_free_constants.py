"""`free-constants` where text does not show it: the numbers stay, its plan."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.examples import drawn
from support.programs import normal
from support.random_programs import WIDTH, interpret

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

LIGHT: dict[str, Callable[[jax.Array], jax.Array]] = {
    "shifted": lambda x: x + 1.5,
    "sign": lambda x: jnp.where(x > 0, 1.0, -0.5),
    "wide": lambda x: jnp.broadcast_to(x, (64, *x.shape)).reshape(64, -1)[:, :WIDTH],
    "causal": lambda x: jnp.where(jnp.tril(jnp.ones(x.shape, bool)), x, 0.25),
    "barrier": lambda x: jax.lax.optimization_barrier(x),
    "heavy": jnp.sin,
}


@drawn(60)
@given(st.lists(st.sampled_from(sorted(LIGHT)), max_size=5), st.integers(1, 3), st.booleans())
def test_masks_of_small_values(steps: list[str], loops: int, inside: bool) -> None:
    """One to three scans read a mask, the last one maybe in a scan of its body."""

    def scanned(x: jax.Array, mask: jax.Array, nested: bool) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            c = scanned(c, mask, False) if nested else c * mask + 0.5 * jnp.sum(mask)
            return jnp.tanh(c), None

        return jax.lax.scan(body, x, None, length=2)[0]

    def loss(x: jax.Array, small: jax.Array) -> jax.Array:
        mask = small
        for step in ("wide", *steps):
            mask = LIGHT[step](mask)
        for number in range(loops):
            x = scanned(x, mask, inside and number == loops - 1)
        return x.sum()

    arguments = (normal(64, WIDTH), normal(1, WIDTH))
    function = jax.jit(jax.value_and_grad(loss), keep_unused=True)
    original = function.lower(*arguments).compiler_ir()
    changed = clone_module(original)
    spec = "free-constants{min_bytes=1}"
    Pipeline.parse(spec).run(changed, target=Target())
    for got, wanted in zip(
        interpret(changed, arguments), interpret(original, arguments), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    again = Pipeline.parse(spec).run(changed, target=Target()).runs[-1]
    assert again.empty, again.summary


def masked_behind_a_barrier(x: jax.Array) -> jax.Array:
    mask = jnp.ones(x.shape, bool)
    return jnp.where(*jax.lax.optimization_barrier((mask, x)), 0.0)


def test_the_plan_tells_operands_and_carries() -> None:
    module = clone_module(jax.jit(masked_behind_a_barrier).lower(normal(4, 4)).compiler_ir())
    run = Pipeline.parse("free-constants").run(module, target=Target()).runs[-1]
    assert [row["out of"] for row in rows_of(run.plan, "Constants taken out")] == ["a barrier"]
    assert run.summary == "1 constant taken out of 1 barrier, 0 out of the carries of 0 loops"
