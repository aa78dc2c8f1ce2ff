"""Signatures: one an operation, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

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
    assert found is not None
    assert found.kept_axes() == kept
    assert rule_of(found) == f"#sdy.op_sharding_rule<{rule}>"
    with block.owner.context:
        assert sdy.OpShardingRuleAttr.isinstance(ir.Attribute.parse(rule_of(found)))
