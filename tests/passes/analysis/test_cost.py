"""What operations cost: FLOPs against XLA's own count, traffic and seconds against arithmetic.

FLOPs of products and convolutions, beside those that XLA counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.mlir import ir

from benchmarks.common.flops import Flops, executed_flops
from hloom.passes.analysis.cost import Cost, operation_cost, repeat_seconds, seconds
from hloom.passes.analysis.flops import operation_flops
from hloom.passes.analysis.pricing import NEVER, Pricing, Rates
from hloom.passes.framework.target import Speed
from hloom.passes.ir import walk
from hloom.passes.ir.ops import facts_of
from hloom.passes.ir.types import TensorSizes

OperationOf = Callable[..., ir.Operation]

SPEED = Speed(
    matrix_flops_per_s=((8, 800.0), (16, 400.0), (32, 200.0)),
    vector_flops_per_s=100.0,
    bytes_per_s=1000.0,
    kernel_s=0.0,
)
"""A device on which arithmetic can be done in the head."""


@pytest.fixture
def operation(context: ir.Context) -> OperationOf:
    """Gives the operation of a function's body that has this name, the last where several do."""
    modules = []  # an operation does not keep its module alive

    def parse(name: str, body: str, arguments: str = "") -> ir.Operation:
        modules.append(ir.Module.parse(f"func.func @main({arguments}) {{\n{body}\nreturn\n}}"))
        block = modules[-1].body.operations[0].regions[0].blocks[0]
        return [op.operation for op in block.operations if op.operation.name == name][-1]

    return parse


F32 = "tensor<1024xf32>"
BF16 = "tensor<1024xbf16>"

COSTS = {
    "elementwise on arguments": (
        "stablehlo.add",
        f"%0 = stablehlo.add %x, %x : {F32}",
        f"%x: {F32}",
        Cost(1024, 2 * 4096),
    ),
    "a division is dearer": (
        "stablehlo.divide",
        f"%0 = stablehlo.divide %x, %x : {F32}",
        f"%x: {F32}",
        Cost(4 * 1024, 2 * 4096),
    ),
    "between elementwise operations nothing is moved": (
        "stablehlo.tanh",
        f"%0 = stablehlo.negate %x : {F32}\n%1 = stablehlo.tanh %0 : {F32}\n"
        f"%2 = stablehlo.negate %1 : {F32}",
        f"%x: {F32}",
        Cost(16 * 1024, 0),
    ),
    "a product wants its operand written": (
        "stablehlo.negate",
        f"%0 = stablehlo.abs %x : {F32}\n%1 = stablehlo.negate %0 : {F32}\n"
        f"%2 = stablehlo.dot_general %1, %x, contracting_dims = [0] x [0] "
        f": ({F32}, {F32}) -> tensor<f32>",
        f"%x: {F32}",
        Cost(1024, 4096),
    ),
    "a slice reads what it takes": (
        "stablehlo.slice",
        f"%0 = stablehlo.slice %x [0:16] : ({F32}) -> tensor<16xf32>",
        f"%x: {F32}",
        Cost(0, 64),
    ),
    "a constant is free": (
        "stablehlo.constant",
        f"%0 = stablehlo.constant dense<1.0> : {F32}",
        "",
        Cost(0, 0),
    ),
    "a reduction reads more than it writes": (
        "stablehlo.reduce",
        "%c = stablehlo.constant dense<0.0> : tensor<f32>\n"
        f"%0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0] "
        f": ({F32}, tensor<f32>) -> tensor<f32>",
        f"%x: {F32}",
        Cost(1024, 4096 + 4),
    ),
    "a gather reads what it takes": (
        "stablehlo.gather",
        '%0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<'
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
        "slice_sizes = array<i64: 1>}> "
        f": ({F32}, tensor<8x1xi32>) -> tensor<8xf32>",
        f"%x: {F32}, %i: tensor<8x1xi32>",
        Cost(0, 2 * 32 + 32),
    ),
    "an update in place": (
        "stablehlo.dynamic_update_slice",
        f"%0 = stablehlo.dynamic_update_slice %x, %u, %i "
        f": ({F32}, tensor<16xf32>, tensor<i32>) -> {F32}",
        f"%x: {F32}, %u: tensor<16xf32>, %i: tensor<i32>",
        Cost(0, 2 * 64),
    ),
    "a sort compares": (
        "stablehlo.sort",
        '%0 = "stablehlo.sort"(%x) <{dimension = 0 : i64}> ({\n'
        "^bb0(%a: tensor<f32>, %b: tensor<f32>):\n"
        "%c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        f"stablehlo.return %c : tensor<i1>\n}}) : ({F32}) -> {F32}",
        f"%x: {F32}",
        Cost(1024 * 10, 2 * 4096),
    ),
}


@pytest.mark.parametrize("case", COSTS.values(), ids=COSTS)
def test_costs(operation: OperationOf, case: tuple[str, str, str, Cost]) -> None:
    name, body, arguments, cost = case
    assert operation_cost(operation(name, body, arguments)) == cost


LOOP = """
%zero = stablehlo.constant dense<0> : tensor<i32>
%limit = stablehlo.constant dense<{trips}> : tensor<i32>
%0:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<16x16xf32>
cond {{
  %1 = stablehlo.compare LT, %i, {bound} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %1 : tensor<i1>
}} do {{
  %one = stablehlo.constant dense<1> : tensor<i32>
  %2 = stablehlo.add %i, %one : tensor<i32>
  %3 = stablehlo.dot_general %c, %c, contracting_dims = [1] x [0]
    : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  stablehlo.return %2, %3 : tensor<i32>, tensor<16x16xf32>
}}
"""
PRODUCT_FLOPS = 2 * 16**3


@pytest.mark.parametrize(("bound", "trips"), [("%limit", 5), ("%n", 1)])
def test_a_loop_runs_as_often_as_it_counts(operation: OperationOf, bound: str, trips: int) -> None:
    loop = operation(
        "stablehlo.while",
        LOOP.format(trips=5, bound=bound),
        "%x: tensor<16x16xf32>, %n: tensor<i32>",
    )
    counting = 2  # the counter's comparison and addition
    assert operation_cost(loop).flops == trips * (PRODUCT_FLOPS + counting)
    product_s = max(PRODUCT_FLOPS / 200, 3 * 1024 / 1000)
    assert seconds(loop, SPEED) == pytest.approx(trips * (product_s + 2 * 0.012), rel=1e-3)


def test_of_a_conditional_the_dearest_branch_counts(operation: OperationOf) -> None:
    case = operation(
        "stablehlo.case",
        f"""%0 = "stablehlo.case"(%i) ({{
          %1 = stablehlo.tanh %x : {F32}
          stablehlo.return %1 : {F32}
        }}, {{
          stablehlo.return %x : {F32}
        }}) : (tensor<i32>) -> {F32}""",
        f"%x: {F32}, %i: tensor<i32>",
    )
    assert operation_cost(case) == Cost(16 * 1024, 4096)


# Seconds.

PRODUCT = (
    "%0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]{precision} "
    ": (tensor<64x64x{type}>, tensor<64x64x{type}>) -> tensor<64x64x{type}>"
)


@pytest.mark.parametrize(
    ("type_", "precision", "rate"),
    [
        ("f8E4M3FN", "", 800.0),
        ("i8", "", 800.0),
        ("bf16", "", 400.0),
        ("f32", "", 200.0),
        ("f32", ", precision = [DEFAULT, DEFAULT]", 200.0),
        ("f32", ", precision = [HIGHEST, HIGHEST]", 100.0),
        ("f64", "", 100.0),
        ("i32", "", 100.0),
        ("complex<f32>", "", 200.0 / 4),
    ],
)
def test_products_take_as_long_as_their_type_needs(
    operation: OperationOf, type_: str, precision: str, rate: float
) -> None:
    product = operation(
        "stablehlo.dot_general",
        PRODUCT.format(type=type_, precision=precision),
        f"%x: tensor<64x64x{type_}>, %y: tensor<64x64x{type_}>",
    )
    assert seconds(product, SPEED) == pytest.approx(2 * 64**3 / rate)


def test_what_only_moves_data_takes_as_long_as_that(operation: OperationOf) -> None:
    transpose = operation(
        "stablehlo.transpose",
        "%0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>",
        "%x: tensor<8x4xf32>",
    )
    assert seconds(transpose, SPEED) == pytest.approx(128 / 1000)


def test_a_kernel_takes_its_time_but_not_inside_of_another(operation: OperationOf) -> None:
    speed = Speed(kernel_s=1.0)
    scalars = "%x: tensor<f32>, %y: tensor<f32>"
    product = "%0 = stablehlo.dot_general %x, %y, contracting_dims = [] x [] "
    product += ": (tensor<f32>, tensor<f32>) -> tensor<f32>"
    assert seconds(operation("stablehlo.dot_general", product, scalars), speed) == 1.0
    add = operation("stablehlo.add", "%0 = stablehlo.add %x, %y : tensor<f32>", scalars)
    assert seconds(add, speed) < 1e-9


def test_a_repeated_conversion_costs_what_it_reads_in_excess(operation: OperationOf) -> None:
    body = f"%0 = stablehlo.convert %x : ({F32}) -> {BF16}\n%1 = stablehlo.negate %0 : {BF16}"
    convert = operation("stablehlo.convert", body, f"%x: {F32}")
    assert seconds(convert, SPEED) == pytest.approx(4096 / 1000)
    assert repeat_seconds(convert, SPEED) == pytest.approx(2048 / 1000)


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_constraints_that_send_nothing_are_read_and_written_through(
    operation: OperationOf, count: int
) -> None:
    """As long as a stranger makes their row: what is fused still is, and a product reads memory."""

    def row(value: str) -> str:
        names = [f"%{value}0", *(f"%{value}{n + 1}" for n in range(count))]
        return "\n".join(
            f'{made} = sdy.sharding_constraint {read} <mesh<["a"=2]>, [{{}}]> : {F32}'
            for read, made in itertools.pairwise(names)
        )

    body = f"""%a0 = stablehlo.negate %x : {F32}
    {row("a")}
    %b0 = stablehlo.abs %a{count} : {F32}
    {row("b")}
    %c = stablehlo.dot_general %b{count}, %x, contracting_dims = [0] x [0]
      : ({F32}, {F32}) -> tensor<f32>"""
    size = 4 * 1024
    first, second = (
        operation_cost(operation(f"stablehlo.{name}", body, f"%x: {F32}")).bytes
        for name in ("negate", "abs")
    )
    assert (first, second) == (size, size)  # one reads memory, the other writes it


def test_prices_are_bytes_rounded_up(operation: OperationOf) -> None:
    square = "tensor<64x64xf32>"
    body = PRODUCT.format(type="f32", precision="") + f"\n%1 = stablehlo.add %0, %0 : {square}"
    arguments = f"%x: {square}, %y: {square}"
    product = operation("stablehlo.dot_general", body, arguments)
    add = operation("stablehlo.add", body, arguments)
    product_s, add_s = 2 * 64**3 / 200, 4096 / 100
    assert product_s == pytest.approx(2621.44)
    pricing = Pricing(SPEED, Rates(expensive=0.001, cheap=1.0))
    assert pricing.seconds(product) == pytest.approx(product_s)
    assert pricing.of(product) == 3
    # Of cheap work a sixteenth counts.
    assert pricing.seconds(add) == pytest.approx(add_s / 16)
    assert pricing.of(add) == 3
    dearer = pricing.at(Rates(expensive=math.inf, cheap=0.0))
    assert dearer.of(product) == NEVER
    assert dearer.of(add) == 0


def test_what_takes_no_time_may_be_forbidden_all_the_same(operation: OperationOf) -> None:
    empty = operation(
        "stablehlo.case",
        f"""%0 = "stablehlo.case"(%i) ({{
          stablehlo.return %x : {F32}
        }}) : (tensor<i32>) -> {F32}""",
        f"%x: {F32}, %i: tensor<i32>",
    )
    assert Pricing(SPEED, Rates(expensive=1.0, cheap=1.0)).of(empty) == 0
    assert Pricing(SPEED, Rates(expensive=math.inf, cheap=1.0)).of(empty) == NEVER


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
