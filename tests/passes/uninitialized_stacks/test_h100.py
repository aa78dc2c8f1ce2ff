"""`uninitialized-stacks` on compiles for an H100 without one: what is filled, and the memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import hloom
from benchmarks.common.h100 import placement
from benchmarks.fills.filled import Filled, filled
from hloom.passes.framework.feedback import record_in
from hloom.passes.uninitialized_stacks import StacksRecord

pytestmark = pytest.mark.h100

LAYERS = 6

COTANGENT_BYTES = 4 * 512 * 256
"""Of the sum that is the loss: ones, which are no stack."""


@pytest.fixture(scope="module")
def lowered() -> Any:
    """The gradient of scanned layers, which stacks residuals and gradients."""

    def loss(kernels: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
            return jnp.sin(x @ kernel), None

        return jax.lax.scan(layer, x, kernels)[0].sum()

    sharding = placement()
    kernels = jax.ShapeDtypeStruct((LAYERS, 256, 256), jnp.float32, sharding=sharding)
    x = jax.ShapeDtypeStruct((512, 256), jnp.float32, sharding=sharding)
    return jax.jit(jax.value_and_grad(loss)).lower(kernels, x)


def compiled(lowered: Any, spec: str) -> tuple[Filled, hloom.CompileRecord]:
    with hloom.strict():
        executable = lowered.compile(compiler_options={"hloom": spec})
    return filled(executable.as_text()), hloom.records()[-1]


def test_nothing_is_filled_at_no_more_memory(lowered: Any) -> None:
    before, off = compiled(lowered, "free-constants")
    after, record = compiled(lowered, "uninitialized-stacks")
    unfilled_bytes = record_in(record.runs[-1].plan, StacksRecord).unfilled_bytes
    assert before.at_entry_bytes >= unfilled_bytes >= 4 * LAYERS * 256 * (256 + 512)
    assert after.at_entry_bytes <= before.at_entry_bytes - unfilled_bytes
    assert record.step_bytes <= off.step_bytes
    assert [attempt.unmodified for attempt in record.attempts][:2] == [False, True]


def test_captured(lowered: Any) -> None:
    """No buffer breaks a graph: it is no work."""
    _, without = compiled(lowered, "capture")
    after, record = compiled(lowered, "uninitialized-stacks,capture")
    assert after.at_entry_bytes == COTANGENT_BYTES
    assert len(record.captured.coverage.left_out) <= len(without.captured.coverage.left_out)


def test_beside_a_budget(lowered: Any) -> None:
    """The other pass decides on the attempts; each has its stacks unfilled."""
    after, record = compiled(lowered, "remat{budget=100%},uninitialized-stacks")
    assert after.at_entry_bytes == COTANGENT_BYTES
    assert record.runs[-1].effect
