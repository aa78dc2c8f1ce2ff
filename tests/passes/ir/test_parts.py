"""Parts of values that have the same everywhere along an axis."""

from __future__ import annotations

from jax.extend.mlir import ir
from support.ir_blocks import BlockOf, block_of, context

from hloom.passes.ir.parts import is_same_everywhere, part_of_same

__all__ = ["block_of", "context"]


def test_what_is_the_same_everywhere(block_of: BlockOf) -> None:
    block = block_of(
        "  %c = stablehlo.constant dense<2.0> : tensor<4x2xf32>\n"
        "  %b = stablehlo.broadcast_in_dim %row, dims = [1] : (tensor<2xf32>) -> tensor<4x2xf32>\n"
        "  %s = stablehlo.add %c, %b : tensor<4x2xf32>\n"
        "  %t = stablehlo.add %s, %x : tensor<4x2xf32>\n",
        "%row: tensor<2xf32>, %x: tensor<4x2xf32>",
    )
    constant, repeated, both, other = (view.results[0] for view in list(block.operations)[:4])
    assert [is_same_everywhere(each, 0) for each in (constant, repeated, both, other)] == [
        True,
        True,
        True,
        False,
    ]
    assert not is_same_everywhere(both, 1)


def test_values_that_are_read_twice_are_looked_at_once(block_of: BlockOf) -> None:
    adds = "".join(
        f"  %v{n + 1} = stablehlo.add %v{n}, %v{n} : tensor<4xf32>\n" for n in range(100)
    )
    block = block_of(f"  %v0 = stablehlo.constant dense<1.0> : tensor<4xf32>\n{adds}", "")
    before = list(block.operations)
    last = before[100].results[0]
    assert is_same_everywhere(last, 0)
    with ir.InsertionPoint(before[-1]), ir.Location.unknown(last.context):
        part = part_of_same(last, 0, 2)
    assert ir.RankedTensorType(part.type).shape == [2]
    assert len(list(block.operations)) == len(before) + 101
