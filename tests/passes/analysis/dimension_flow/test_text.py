"""Operations that JAX lowers to something else on the CPU, or does not write: as StableHLO."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jax.extend.mlir import ir
from support.flows.runs import assert_chunks_agree, compiled, flow_of, results_of

from hloom.passes.analysis.program import Program
from hloom.passes.analysis.signatures.signature import AxisLayout

WHOLE_1 = "whole after phase 1"
SUM = "partial sum in phase 1"


def split(axis: int, phase: int = 1) -> str:
    return f"split along axis {axis} in phase {phase}"


def module_of(context: ir.Context, body: str, arguments: str, results: str) -> ir.Module:
    text = f"module @m {{ func.func public @main({arguments}) -> {results} {{\n{body}\n}} }}"
    with context:
        return ir.Module.parse(text)


RAGGED = """
%0 = "chlo.ragged_dot"(%x, %w, %n) <{ragged_dot_dimension_numbers =
  #chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [],
    lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1],
    lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}>
  : (tensor<4x6xf32>, tensor<2x6x8xf32>, tensor<2xi32>) -> tensor<4x8xf32>
return %0 : tensor<4x8xf32>
"""
RAGGED_ARGUMENTS = "%x: tensor<4x6xf32>, %w: tensor<2x6x8xf32>, %n: tensor<2xi32>"


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ([(0, 0)], "invariant"),
        ([(0, 1)], SUM),
        ([(1, 1)], SUM),
        ([(1, 2)], split(1)),
        ([(2, 0)], "invariant"),
    ],
)
def test_ragged_products(context: ir.Context, seeds: list[Any], expected: str) -> None:
    """Rows belong to groups by their place: they are not cut. An argument is whole anyway."""
    module = module_of(context, RAGGED, RAGGED_ARGUMENTS, "tensor<4x8xf32>")
    assert results_of(flow_of(module, *seeds)) == [expected]


def ragged(x: Any, w: Any, sizes: Any) -> Any:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return np.stack([row @ w[group] for row, group in zip(x, groups, strict=True)])


def test_ragged_products_by_their_definition() -> None:
    """No compiler for the CPU, and not the interpreter, has them."""
    drawn = np.random.default_rng(0)
    x, w, sizes = drawn.normal(size=(4, 6)), drawn.normal(size=(2, 6, 8)), [1, 3]
    whole = ragged(x, w, sizes)
    terms = [ragged(x[:, part], w[:, part], sizes) for part in (slice(0, 2), slice(2, 6))]
    np.testing.assert_allclose(sum(terms), whole)
    parts = [ragged(x, w[..., part], sizes) for part in (slice(0, 5), slice(5, 8))]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole)


def test_ragged_products_of_groups_of_columns(context: ir.Context) -> None:
    """The gradient of the weights: the ragged rows are contracted, group by group."""
    body = """
    %0 = "chlo.ragged_dot"(%x, %y, %n) <{ragged_dot_dimension_numbers =
      #chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [],
        lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0],
        lhs_ragged_dimensions = [0], rhs_group_dimensions = []>}>
      : (tensor<4x6xf32>, tensor<4x8xf32>, tensor<2xi32>) -> tensor<2x6x8xf32>
    return %0 : tensor<2x6x8xf32>
    """
    arguments = "%x: tensor<4x6xf32>, %y: tensor<4x8xf32>, %n: tensor<2xi32>"
    module = module_of(context, body, arguments, "tensor<2x6x8xf32>")
    assert results_of(flow_of(module, (0, 0))) == ["invariant"]
    assert results_of(flow_of(module, (0, 1))) == [split(1)]
    assert results_of(flow_of(module, (1, 1))) == [split(2)]


CHOLESKY = """
%0 = stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [2] x [2]
  : (tensor<4x3x3xf32>, tensor<4x3x3xf32>) -> tensor<4x3x3xf32>
%i = stablehlo.iota dim = 0 : tensor<3x3xf32>
%j = stablehlo.iota dim = 1 : tensor<3x3xf32>
%d = stablehlo.compare EQ, %i, %j : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xi1>
%e = stablehlo.convert %d : (tensor<3x3xi1>) -> tensor<3x3xf32>
%b = stablehlo.broadcast_in_dim %e, dims = [1, 2] : (tensor<3x3xf32>) -> tensor<4x3x3xf32>
%a = stablehlo.add %0, %b : tensor<4x3x3xf32>
%1 = "stablehlo.cholesky"(%a) <{lower = true}> : (tensor<4x3x3xf32>) -> tensor<4x3x3xf32>
%2 = "stablehlo.triangular_solve"(%1, %y) <{left_side = true, lower = true, unit_diagonal = false,
  transpose_a = #stablehlo<transpose NO_TRANSPOSE>}>
  : (tensor<4x3x3xf32>, tensor<4x3x4xf32>) -> tensor<4x3x4xf32>
return %2 : tensor<4x3x4xf32>
"""


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ([(0, 0)], split(0)),
        ([(0, 0), (1, 0)], split(0)),
        ([(1, 2)], split(2)),
        ([(1, 0)], split(0)),
    ],
)
def test_factorizations(context: ir.Context, seeds: list[Any], expected: str) -> None:
    arguments = "%x: tensor<4x3x3xf32>, %y: tensor<4x3x4xf32>"
    module = module_of(context, CHOLESKY, arguments, "tensor<4x3x4xf32>")
    flow = flow_of(module, *seeds)
    assert results_of(flow) == [expected]
    drawn = np.random.default_rng(0)
    values = tuple(drawn.normal(size=shape).astype(np.float32) for shape in [(4, 3, 3), (4, 3, 4)])
    assert_chunks_agree(module, flow, values, evaluate=compiled)


def solved(rule: str, more: str = "") -> str:
    """A call whose rule says which axes of its operand and its result are the same."""
    rule = f"#sdy.op_sharding_rule<([i, j])->{rule}, custom>"
    return f"stablehlo.custom_call @solve(%y) {{{more}sdy.sharding_rule = {rule}}} : (M) -> M"


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("stablehlo.custom_call @kernel(%y) : (M) -> M", WHOLE_1),
        ("stablehlo.custom_call @Sharding(%y) : (M) -> M", split(0)),
        (solved("([i, k]) {i=4, j=4, k=4}"), split(0)),
        (solved("([i, k]) {i=4, j=4, k=4} need_replication={i}"), WHOLE_1),
        (solved("([i, j]) {i=4, j=4}", "has_side_effect = true, "), WHOLE_1),
        ("stablehlo.optimization_barrier %y : M", split(0)),
        ('"stablehlo.dot"(%y, %k) : (M, M) -> M', split(0, 1)),
        ("stablehlo.reduce_precision %y, format = e5m10 : M", split(0)),
        (
            '"stablehlo.map"(%y) <{dimensions = array<i64: 0, 1>}> ({\n^bb0(%a: tensor<f32>):\n'
            "stablehlo.return %a : tensor<f32>\n}) : (M) -> M",
            split(0),
        ),
        ("stablehlo.dynamic_reshape %y, %s : (M, tensor<2xi32>) -> M", WHOLE_1),
    ],
)
def test_calls_and_others(context: ir.Context, operation: str, expected: str) -> None:
    body = f"""
    %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (M, M) -> M
    %s = stablehlo.constant dense<4> : tensor<2xi32>
    %k = stablehlo.constant dense<4.0> : M
    %0 = {operation}
    return %0 : M
    """
    body = re.sub(r"\bM\b", "tensor<4x4xf32>", body)
    module = module_of(context, body, "%x: tensor<4x4xf32>", "tensor<4x4xf32>")
    assert results_of(flow_of(module, (0, 0))) == [expected]


def test_values_without_a_static_shape_are_whole(context: ir.Context) -> None:
    body = """
    %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1]
      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.custom_call @filter(%0) : (tensor<4x4xf32>) -> tensor<?x4xf32>
    %2 = stablehlo.sine %1 : tensor<?x4xf32>
    return %2 : tensor<?x4xf32>
    """
    module = module_of(context, body, "%x: tensor<4x4xf32>", "tensor<?x4xf32>")
    assert results_of(flow_of(module, (0, 0))) == [WHOLE_1]


def test_a_combiner_that_reads_more_is_followed_no_further(context: ir.Context) -> None:
    body = """
    %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1]
      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %k = stablehlo.custom_call @scale() : () -> tensor<f32>
    %0 = "stablehlo.reduce"(%y, %z) <{dimensions = array<i64: 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %k : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
    """
    module = module_of(context, body, "%x: tensor<4x4xf32>", "tensor<4xf32>")
    assert results_of(flow_of(module, (0, 0))) == [WHOLE_1]


def test_a_part_of_each_device_in_a_ragged_factor(context: ir.Context) -> None:
    """A layout that lies in two factors of a reshape is in no single axis."""
    body = """
    %y = stablehlo.custom_call @solve(%x) {sdy.sharding_rule =
      #sdy.op_sharding_rule<([i])->([i]) {i=8}, custom>} : (tensor<8xf32>) -> tensor<8xf32>
    %0 = stablehlo.reshape %y : (tensor<8xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
    """
    module = module_of(context, body, "%x: tensor<8xf32>", "tensor<2x4xf32>")
    found = {
        layout: results_of(flow_of(module, (0, layout)))[0]
        for layout in (
            AxisLayout(0, 1, 8, 1),
            AxisLayout(0, 1, 2, 4),
            AxisLayout(0, 1, 4, 2),
            AxisLayout(0, 2, 2, 2),
            AxisLayout(0, 4, 2, 1),
        )
    }
    assert list(found.values()) == [
        WHOLE_1,
        split(0),
        WHOLE_1,
        "split along axis 1 as [1, 2, 2] in phase 1",
        "split along axis 1 as [2, 2, 1] in phase 1",
    ]


def test_the_program_counts_what_is_in_it(block_of: Callable[..., ir.Block]) -> None:
    block = block_of(
        "%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]"
        " : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>",
        "%x: tensor<4x4xf32>",
    )
    program = Program(block)
    assert program.flops == 2 * 4**3
    assert len(program.root.nodes) == 1
