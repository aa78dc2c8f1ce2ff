"""FLOPs of products and convolutions, beside those that XLA counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.mlir import ir

from benchmarks.common.flops import Flops, executed_flops
from hloom.passes.analysis.flops import operation_flops
from hloom.passes.ir import walk
from hloom.passes.ir.ops import facts_of
from hloom.passes.ir.types import TensorSizes

OperationOf = Callable[..., ir.Operation]


def products_of(function: Callable[..., Any], *shapes: Any) -> float:
    module = jax.jit(function).lower(*shapes).compiler_ir()
    sizes = TensorSizes()
    ops = walk.operations(module.operation)
    return sum(operation_flops(op, sizes) for op in ops if facts_of(op.name).is_product)


def flops_by_xla(function: Callable[..., Any], *shapes: Any) -> float:
    # XLA leaves a count of nothing out.
    return jax.jit(function).lower(*shapes).cost_analysis().get("flops", 0.0)


def shaped(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("left", "right", "axes", "flops"),
    [
        ((3, 5), (5, 7), (((1,), (0,)), ((), ())), 2 * 3 * 5 * 7),
        ((2, 3, 5), (2, 5, 7), (((2,), (1,)), ((0,), (0,))), 2 * 2 * 3 * 5 * 7),
        ((3, 4, 5), (4, 5, 7), (((1, 2), (0, 1)), ((), ())), 2 * 3 * 4 * 5 * 7),
        ((3,), (5,), (((), ()), ((), ())), 2 * 3 * 5),
    ],
)
def test_matrix_products(
    left: tuple[int, ...], right: tuple[int, ...], axes: Any, flops: int
) -> None:
    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.dot_general(x, y, axes)

    assert products_of(product, shaped(*left), shaped(*right)) == flops


def test_a_complex_product_is_four_products() -> None:
    real, complex_ = shaped(8, 8), shaped(8, 8, dtype="complex64")
    assert products_of(jnp.dot, complex_, complex_) == 4 * products_of(jnp.dot, real, real)


convolutions = st.fixed_dictionaries(
    {
        "image": st.integers(3, 9),
        "kernel": st.integers(1, 3),
        "strides": st.tuples(st.integers(1, 3), st.just(1)),
        "padding": st.tuples(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.just((0, 1))),
        "lhs_dilation": st.tuples(st.integers(1, 3), st.just(2)),
        "rhs_dilation": st.tuples(st.integers(1, 2), st.just(1)),
        "groups": st.sampled_from(["none", "feature", "batch"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(convolutions)
def test_convolutions_count_as_in_xla(case: dict[str, Any]) -> None:
    features = 4
    batch_groups = 2 if case["groups"] == "batch" else 1
    feature_groups = 2 if case["groups"] == "feature" else 1
    image = shaped(2, case["image"], 6, features)
    kernel = shaped(case["kernel"], 2, features // feature_groups, 6)

    def convolve(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            y,
            window_strides=case["strides"],
            padding=case["padding"],
            lhs_dilation=case["lhs_dilation"],
            rhs_dilation=case["rhs_dilation"],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=feature_groups,
            batch_group_count=batch_groups,
        )

    expected = flops_by_xla(convolve, image, kernel)
    assert products_of(convolve, image, kernel) == expected
    counted = executed_flops(jax.jit(convolve).lower(image, kernel).compiler_ir())
    assert counted == Flops(int(expected), 0)


def test_the_gradients_of_a_strided_convolution_count_as_in_xla() -> None:
    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, y, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ).sum()

    image, kernel = shaped(2, 14, 14, 8), shaped(3, 3, 8, 16)
    both = jax.grad(loss, argnums=(0, 1))
    module = jax.jit(both).lower(image, kernel).compiler_ir()
    counted = executed_flops(module).products
    assert counted == products_of(both, image, kernel)
    assert counted == pytest.approx(flops_by_xla(both, image, kernel), rel=0.02)
