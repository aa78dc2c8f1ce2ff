"""Values that loops write over constants: when XLA:GPU fills them, by its version and by block.

Outer products: XLA:GPU makes multiplications of them, which each kernel makes again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.modules import module_after

from benchmarks.common.h100 import measure, placement
from hloom.passes.analysis.memory_model.memory_rules import PACKED, XLA_GPU, GpuRules, MemoryRules
from hloom.passes.analysis.memory_model.tracer import predict
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
    return module_after(program, target=Target("cuda", "cuda"))


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


EXAMPLES, FEATURES, LAYERS = 128, 512, 3
ONE_GRADIENT = EXAMPLES * FEATURES * FEATURES * 4


def spec(*shape: int, sharding: jax.sharding.Sharding | None = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)


def clipped(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """The sum of the gradients of single examples, each clipped by its norm."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.sin(x @ weight)
        return x.sum()

    gradients = jax.vmap(jax.grad(loss), (None, 0))(weights, x)
    factors = 1 / jnp.sqrt(sum((g**2).sum((1, 2)) for g in gradients))
    return [jnp.einsum("b,bij->ij", factors, gradient) for gradient in gradients]


def kept(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A product reads what the sum reads, as it is: XLA has it in memory for both."""
    outer = jnp.einsum("bi,bj->bij", x, y)
    factors = (outer**2).sum((1, 2))
    return jnp.einsum("b,bij->ij", factors, outer), factors


def summed(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sin(jnp.einsum("bi,bj->bij", x, y)).sum((1, 2))


def degenerate(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sin(jnp.einsum("bci,bcj->bij", x[:, None], y[:, None])).sum((1, 2))


def edges(*pairs: jax.Array) -> jax.Array:
    """Messages on the edges of graphs, as in the gradients of forces."""
    x, y, *more = pairs
    first = jnp.einsum("miw,mjw->mijw", x, y)
    return first + jnp.einsum("miw,mjw->mijw", more[0], y) if more else first


def two_orders(weight: jax.Array, *pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One product sums the messages over their features, the other one over the edges."""
    message = edges(*pairs)
    sent = jnp.einsum("mijw,wv->mijv", message, weight)
    return sent.sum(1), jnp.einsum("mijw,mijv->wv", message, sent)


def one_order(weight: jax.Array, *pairs: jax.Array) -> jax.Array:
    return jnp.sin(jnp.einsum("mijw,wv->mijv", edges(*pairs), weight)).sum(1)


def test_gradients_of_examples_are_in_memory_one_after_the_other() -> None:
    module = prepared(
        jax.jit(clipped).lower([spec(FEATURES, FEATURES)] * LAYERS, spec(EXAMPLES, FEATURES))
    )
    gpu, other = (predict(module, rules=rules).temp_bytes for rules in (XLA_GPU, PACKED))
    assert ONE_GRADIENT < gpu < 1.1 * ONE_GRADIENT
    assert other > LAYERS * ONE_GRADIENT


@pytest.mark.parametrize("program", [summed, degenerate])
def test_an_outer_product_that_is_summed_is_not_in_memory(
    program: Callable[[jax.Array, jax.Array], jax.Array],
) -> None:
    lowered = jax.jit(program).lower(spec(EXAMPLES, FEATURES), spec(EXAMPLES, FEATURES))
    assert predict(prepared(lowered), rules=XLA_GPU).temp_bytes < ONE_GRADIENT / 100


def test_what_a_product_reads_untransposed_is_kept_for_all() -> None:
    lowered = jax.jit(kept).lower(spec(EXAMPLES, FEATURES), spec(EXAMPLES, FEATURES))
    assert predict(prepared(lowered), rules=XLA_GPU).temp_bytes >= ONE_GRADIENT


@pytest.mark.parametrize(("program", "pairs"), [(two_orders, 2), (two_orders, 3), (one_order, 3)])
def test_what_two_products_read_is_in_memory_in_both_orders(
    program: Callable[..., Any], pairs: int
) -> None:
    """XLA's figures are 96, 96 and 64 MiB on both versions of jax."""
    lowered = jax.jit(program).lower(spec(128, 128), *[spec(16, 64, 128)] * pairs)
    values = 2 if program is one_order else 3
    size_bytes = 16 * 64 * 64 * 128 * 4
    predicted = predict(prepared(lowered), rules=XLA_GPU).temp_bytes
    assert predicted == pytest.approx(values * size_bytes, rel=0.01)


@pytest.mark.h100
def test_the_memory_of_gradients_of_examples_is_xlas() -> None:
    sharding = placement()
    weights = [spec(FEATURES, FEATURES, sharding=sharding)] * LAYERS
    lowered = jax.jit(clipped).lower(weights, spec(EXAMPLES, FEATURES, sharding=sharding))
    real = measure(lowered, "off").temp_bytes
    assert predict(prepared(lowered), rules=XLA_GPU).temp_bytes == pytest.approx(real, rel=0.05)
