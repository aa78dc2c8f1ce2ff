"""Values that loops write over constants: when XLA:GPU fills them, by its version and by block."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir

from benchmarks.common.h100 import measure, placement
from hloom.passes.analysis.memory_model.memory_rules import PACKED, XLA_GPU, GpuRules, MemoryRules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target

STEPS, WIDTH = 16, 1 << 15
STACK = STEPS * WIDTH * 4


class Together(GpuRules):
    fills_apart_bytes = sys.maxsize


class Apart(GpuRules):
    fills_apart_bytes = STACK


class ApartFromMore(GpuRules):
    fills_apart_bytes = STACK + 1


def checkpointed(blocks: int) -> Callable[..., Any]:
    """Scans of checkpointed steps, one behind the other, each of them checkpointed as well."""

    def step(carry: Any, _: None) -> tuple[Any, None]:
        p, x = carry
        return (p, x + jnp.cos(p * jnp.sin(p * x))), None

    def loss(p: jax.Array, x: jax.Array) -> jax.Array:
        block = jax.remat(lambda carry: jax.lax.scan(jax.remat(step), carry, length=STEPS)[0])
        carry = p, x
        for _ in range(blocks):
            carry = block(carry)
        return carry[1].sum()

    return jax.value_and_grad(loss)


def in_a_loop(blocks: int) -> Callable[..., Any]:
    """The same in each iteration of a scan."""

    def repeated(p: jax.Array, x: jax.Array) -> Any:
        def body(p: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            value, gradient = checkpointed(blocks)(p, x)
            return p - gradient, value

        return jax.lax.scan(body, p, length=3)

    return repeated


def lowered(step: Callable[..., Any], sharding: jax.sharding.Sharding | None = None) -> Any:
    arguments = [jax.ShapeDtypeStruct(s, "float32", sharding=sharding) for s in ((), (WIDTH,))]
    return jax.jit(step).lower(*arguments)


def prepared(program: Any) -> ir.Module:
    module: ir.Module = program.compiler_ir()
    Pipeline.parse("inline,cse,free-constants").run(module, target=Target("cuda", "cuda"))
    return module


def stacks(step: Callable[..., Any], rules: MemoryRules) -> int:
    """How many stacks are in memory at once, by the model."""
    return predict(prepared(lowered(step)), rules=rules).temp_bytes // STACK


@pytest.mark.parametrize(
    ("rules", "expected"),
    [(Together(), 4), (ApartFromMore(), 4), (Apart(), 1), (PACKED, 4)],
    ids=["together", "too small", "apart", "others"],
)
def test_stacks_of_the_main_block(rules: MemoryRules, expected: int) -> None:
    assert stacks(checkpointed(4), rules) == expected


@pytest.mark.parametrize("rules", [Together(), Apart()], ids=["together", "apart"])
@pytest.mark.parametrize(("blocks", "expected"), [(1, 1), (2, 2), (4, 2)])
def test_stacks_of_a_loops_body_are_copies_of_one(
    blocks: int, expected: int, rules: MemoryRules
) -> None:
    assert stacks(in_a_loop(blocks), rules) == expected


@pytest.mark.h100
@pytest.mark.parametrize("around", [checkpointed, in_a_loop])
def test_predictions_are_xlas(around: Callable[[int], Callable[..., Any]]) -> None:
    program = lowered(around(4), placement())
    real = measure(program, "off").temp_bytes
    # A slice more or less is a sixteenth of a stack.
    assert predict(prepared(program), rules=XLA_GPU).temp_bytes == pytest.approx(real, rel=1 / 16)
