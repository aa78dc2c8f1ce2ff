"""Signatures: one an operation, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from support.flows.drawn import drawn_program
from support.flows.operations import COMPILED, FAMILIES, Draw, Operation
from support.flows.runs import (
    assert_chunks_agree,
    compiled,
    evaluated,
    flow_of,
    lowered,
    results_of,
)

from hloom.passes.analysis.shardings.rules import rule_of
from hloom.passes.analysis.signatures import signature_of
from hloom.passes.analysis.signatures.rules import RULES, signature
from hloom.passes.ir import ops


def test_rules_are_of_operations_that_there_are() -> None:
    assert ops.names() >= RULES.keys()


def test_an_operation_has_one_rule() -> None:
    with pytest.raises(ValueError, match="stablehlo.add has two signatures, and wants one"):
        signature("stablehlo.add")(RULES["stablehlo.add"])


TRANSPOSE = (
    "%0 = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<4x6x1xf32>) -> tensor<6x4x1xf32>"
)
RESHAPE = "%0 = stablehlo.reshape %x : (tensor<4x6x1xf32>) -> tensor<4x2x3xf32>"
SUM = """%z = stablehlo.constant dense<0.0> : tensor<f32>
%0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1]
  : (tensor<4x6x1xf32>, tensor<f32>) -> tensor<4x1xf32>"""
SQUARE = "%0 = chlo.square %x : tensor<4x6x1xf32> -> tensor<4x6x1xf32>"


@pytest.mark.parametrize(
    ("body", "kept", "rule"),
    [
        (TRANSPOSE, {0: 1, 1: 0}, "([i, j, k])->([j, i, l]) {i=4, j=6, k=1, l=1}"),
        (RESHAPE, {0: 0}, "([i, jk, l])->([i, j, k]) {i=4, j=2, k=3, l=1}"),
        (SUM, {0: 0}, "([i, j, k], [])->([i, l]) {i=4, j=6, k=1, l=1} need_replication={j}"),
        (SQUARE, {0: 0, 1: 1}, "([i, j, k])->([i, j, l]) {i=4, j=6, k=1, l=1}"),
    ],
)
def test_what_is_read_off_a_signature(
    block_of: Callable[..., ir.Block], body: str, kept: dict[int, int], rule: str
) -> None:
    block = block_of(body, "%x: tensor<4x6x1xf32>")
    op = list(block.operations)[-2].operation
    found = signature_of(op)
    assert found.kept_axes() == kept
    assert rule_of(found) == f"#sdy.op_sharding_rule<{rule}>"
    with block.owner.context:
        assert sdy.OpShardingRuleAttr.isinstance(ir.Attribute.parse(rule_of(found)))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rule_holds(name: str) -> None:
    assert examples_with_a_loop(FAMILIES[name], evaluated, 40) >= 4, "they say nothing of the rule"


@pytest.mark.parametrize("name", COMPILED)
def test_a_rule_of_what_is_compiled_holds(name: str) -> None:
    assert examples_with_a_loop(COMPILED[name], compiled, 12) >= 2, "they say nothing of the rule"


def examples_with_a_loop(
    family: Callable[[Draw], Operation], evaluate: Callable[..., Any], examples: int
) -> int:
    """How many of the drawn programs return what a loop makes. All give the same in chunks."""
    found = 0

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal found
        drawn = drawn_program(data.draw, family(data.draw))
        if drawn.places:
            module = lowered(drawn.function, *drawn.arguments)
            flow = flow_of(module, *drawn.places, barrier=True)
            found += any(text.startswith(("split", "partial")) for text in results_of(flow))
            count = data.draw(st.sampled_from([2, 3]))
            assert_chunks_agree(module, flow, drawn.arguments, count=count, evaluate=evaluate)

    check()
    return found
