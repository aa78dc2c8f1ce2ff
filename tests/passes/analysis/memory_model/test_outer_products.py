"""Outer products: XLA:GPU makes multiplications of them, which each kernel makes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir

from benchmarks.common.h100 import measure, placement
from hloom.passes.analysis.memory_model.memory_rules import PACKED, XLA_GPU
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target

EXAMPLES, WIDTH, LAYERS = 128, 512, 3
ONE_GRADIENT = EXAMPLES * WIDTH * WIDTH * 4


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


def prepared(lowered: Any) -> ir.Module:
    module: ir.Module = lowered.compiler_ir()
    Pipeline.parse("inline,cse,free-constants").run(module, target=Target("cuda", "cuda"))
    return module


def test_gradients_of_examples_are_in_memory_one_after_the_other() -> None:
    module = prepared(jax.jit(clipped).lower([spec(WIDTH, WIDTH)] * LAYERS, spec(EXAMPLES, WIDTH)))
    gpu, other = (predict(module, rules=rules).temp_bytes for rules in (XLA_GPU, PACKED))
    assert ONE_GRADIENT < gpu < 1.1 * ONE_GRADIENT
    assert other > LAYERS * ONE_GRADIENT


@pytest.mark.parametrize("program", [summed, degenerate])
def test_an_outer_product_that_is_summed_is_not_in_memory(
    program: Callable[[jax.Array, jax.Array], jax.Array],
) -> None:
    lowered = jax.jit(program).lower(spec(EXAMPLES, WIDTH), spec(EXAMPLES, WIDTH))
    assert predict(prepared(lowered), rules=XLA_GPU).temp_bytes < ONE_GRADIENT / 100


def test_what_a_product_reads_untransposed_is_kept_for_all() -> None:
    lowered = jax.jit(kept).lower(spec(EXAMPLES, WIDTH), spec(EXAMPLES, WIDTH))
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
    weights = [spec(WIDTH, WIDTH, sharding=sharding)] * LAYERS
    lowered = jax.jit(clipped).lower(weights, spec(EXAMPLES, WIDTH, sharding=sharding))
    real = measure(lowered, "off").temp_bytes
    assert predict(prepared(lowered), rules=XLA_GPU).temp_bytes == pytest.approx(real, rel=0.05)
