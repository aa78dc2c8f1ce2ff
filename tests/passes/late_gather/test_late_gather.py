"""`late-gather` gives the same bits, gathers fewer bytes, and leaves what means something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support.devices.planned_for_h100 import AXIS, mesh_of, placed, planned_for_h100
from support.programs import normal
from support.results import assert_equal

import hloom
from hloom.passes.framework.tables import facts_of, rows_of

SPEC = "late-gather{min_bytes=1B}"
TOKENS, WIDTH = 64, 32


def run(block: Callable[..., Any], spec: str, *more: tuple[np.ndarray, P]) -> tuple[Any, Any]:
    """What a block makes of its part of 64 tokens, and the pass's run."""
    mesh = mesh_of()
    given = [(normal(TOKENS, WIDTH), P(AXIS)), *more]
    mapped = jax.shard_map(
        block, mesh=mesh, in_specs=tuple(s for _, s in given), out_specs=P(AXIS), check_vma=False
    )
    with planned_for_h100(), hloom.strict():
        results = jax.jit(mapped, compiler_options={"hloom": spec})(
            *(placed(value, mesh, s) for value, s in given)
        )
    return jax.tree.leaves(results), hloom.records()[-1].runs[-1] if spec != "off" else None


def gathered(x: jax.Array) -> jax.Array:
    return jax.lax.all_gather(x, AXIS, tiled=True)


def of_tensor(x: jax.Array, dtype: Any = jnp.float8_e4m3fn) -> tuple[jax.Array, jax.Array]:
    """Quantised, with a scale of the whole tensor."""
    most = 448.0 if dtype == jnp.float8_e4m3fn else 127.0
    scale = jnp.maximum(jnp.max(jnp.abs(x)), 1e-12) / most
    rounded = x / scale if dtype == jnp.float8_e4m3fn else jnp.round(x / scale)
    return rounded.astype(dtype), scale[None]


def of_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Quantised, with a scale of each row."""
    scale = jnp.maximum(jnp.max(jnp.abs(x), -1, keepdims=True), 1e-12) / 127.0
    return jnp.round(x / scale).astype(jnp.int8), scale


MOVED: dict[str, tuple[Callable[[jax.Array], Any], int]] = {
    "fp8": (lambda x: of_tensor(gathered(x)), TOKENS * WIDTH + 8 * 4),
    "int8": (lambda x: of_tensor(gathered(x), jnp.int8), TOKENS * WIDTH + 8 * 4),
    "int8 of rows": (lambda x: of_rows(gathered(x)), TOKENS * WIDTH + TOKENS * 4),
    "bfloat16": (lambda x: gathered(x).astype(jnp.bfloat16), TOKENS * WIDTH * 2),
    "an activation": (lambda x: jnp.tanh(gathered(x)) * 2, TOKENS * WIDTH * 4),
    "a sum of two": (lambda x: gathered(x) + gathered(2 * x), TOKENS * WIDTH * 4),
    "an extreme alone": (lambda x: jnp.min(gathered(x), keepdims=True), 8 * 4),
}
"""Blocks, and the bytes that are gathered once the pass has run."""


@pytest.mark.parametrize("name", MOVED)
def test_work_goes_before_the_gather(name: str) -> None:
    block, after_bytes = MOVED[name]
    [wanted, _], [got, ran] = run(block, "off"), run(block, SPEC)
    assert_equal(wanted, got)
    assert facts_of(ran.plan)["gathered now"] == after_bytes


def _both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    whole = gathered(x)
    return whole, whole.astype(jnp.int8)


LEFT: dict[str, tuple[Callable[[jax.Array], Any], str]] = {
    "a scale of each device's own": (
        lambda x: (gathered(x) / jnp.max(jnp.abs(x))).astype(jnp.int8),
        "reads a value of each device's own",
    ),
    "a device's number": (
        lambda x: (gathered(x) * jax.lax.axis_index(AXIS)).astype(jnp.int8),
        "reads a value of each device's own",
    ),
    "a sum": (lambda x: jnp.sum(gathered(x), -1).astype(jnp.bfloat16), "would round a sum"),
    "an iota along the axis": (
        lambda x: (gathered(x) * jnp.arange(float(TOKENS))[:, None]).astype(jnp.int8),
        "reads another value along its axis",
    ),
    "a wider type": (lambda x: gathered(x).astype(jnp.float64), ""),
    "a product": (lambda x: gathered(x) @ jnp.ones((WIDTH, 4)), "dot_general"),
    "what is gathered itself": (_both, ""),
}
"""Blocks that stay as they are, and why."""


@pytest.mark.parametrize("name", LEFT)
def test_what_stays(name: str) -> None:
    block, reason = LEFT[name]
    with jax.enable_x64(name == "a wider type"):
        _, ran = run(block, SPEC)
    assert ran.empty
    assert reason in " ".join(str(row["why"]) for row in rows_of(ran.plan, "Left as it is"))


def test_scales_that_a_loop_carries() -> None:
    """A scale is the same on all devices in each iteration, where its history is."""

    def block(x: jax.Array, scale: jax.Array) -> jax.Array:
        def layer(carry: Any, _: None) -> tuple[Any, None]:
            x, scale = carry
            whole = (gathered(x) / scale).astype(jnp.bfloat16)
            largest = jax.lax.pmax(jnp.max(jnp.abs(x)), AXIS)
            own = jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(AXIS) * 8, 8)
            return (own.astype(x.dtype), 0.5 * (scale + largest)), None

        return jax.lax.scan(layer, (x, scale[0]), None, length=3)[0][0]

    def of_its_own(x: jax.Array, scale: jax.Array) -> jax.Array:
        def layer(carry: Any, _: None) -> tuple[Any, None]:
            x, scale = carry
            whole = (gathered(x) / scale).astype(jnp.bfloat16)
            own = jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(AXIS) * 8, 8)
            return (own.astype(x.dtype), 0.5 * (scale + jnp.max(jnp.abs(x)))), None

        return jax.lax.scan(layer, (x, scale[0]), None, length=3)[0][0]

    scale = (np.full(1, 2.0, np.float32), P())
    [wanted, _], [got, ran] = run(block, "off", scale), run(block, SPEC, scale)
    np.testing.assert_array_equal(wanted[0], got[0])
    assert not ran.empty
    assert run(of_its_own, SPEC, scale)[1].empty


def test_nan_on_one_device_is_nan_everywhere() -> None:
    def block(x: jax.Array) -> Any:
        index = jax.lax.axis_index(AXIS)
        return of_tensor(gathered(jnp.where(index == 3, jnp.nan, x)), jnp.int8)[1]

    [wanted, _], [got, ran] = run(block, "off"), run(block, SPEC)
    assert not ran.empty
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(wanted[0], got[0])


def test_small_gathers_stay() -> None:
    _, ran = run(MOVED["fp8"][0], "late-gather")
    assert ran.summary == "no gather has work that commutes with it"


def test_twice_is_once() -> None:
    _, ran = run(MOVED["fp8"][0], f"{SPEC},{SPEC}")
    assert ran.empty
