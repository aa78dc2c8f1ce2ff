"""A module as XLA reads it before propagation."""

from __future__ import annotations

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.analysis.shardings.readings import NUMBER, read_as_by_xla
from hloom.passes.ir import walk

OUTER = """
func.func @main(%x: tensor<3x2x4xf32>, %y: tensor<2x5x3xf32>) -> tensor<3x2x4x5xf32> {
  %0 = stablehlo.dot_general %x, %y, batching_dims = [0, 1] x [2, 0], contracting_dims = [] x []
    : (tensor<3x2x4xf32>, tensor<2x5x3xf32>) -> tensor<3x2x4x5xf32>
  return %0 : tensor<3x2x4x5xf32>
}"""

ORDER = """
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.sine %y : tensor<4xf32>
  %1 = stablehlo.cosine %x : tensor<4xf32>
  %2 = stablehlo.abs %y : tensor<4xf32>
  %3 = stablehlo.floor %1 : tensor<4xf32>
  %4 = stablehlo.add %3, %0 : tensor<4xf32>
  %5 = stablehlo.negate %x : tensor<4xf32>
  return %4, %2 : tensor<4xf32>, tensor<4xf32>
}"""

LOOP = """
func.func @main(%n: tensor<i32>, %x: tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>) {
  %0 = stablehlo.sine %x : tensor<4xf32>
  %1 = stablehlo.abs %n : tensor<i32>
  %2:2 = stablehlo.while(%i = %1, %c = %x) : tensor<i32>, tensor<4xf32>
  cond {
    %3 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  } do {
    %3 = stablehlo.add %c, %0 : tensor<4xf32>
    %4 = stablehlo.add %i, %1 : tensor<i32>
    stablehlo.return %4, %3 : tensor<i32>, tensor<4xf32>
  }
  return %2#0, %2#1 : tensor<i32>, tensor<4xf32>
}"""


def read(text: str) -> ir.Module:
    module = ir.Module.parse(text)
    integer = ir.IntegerType.get_signless(64)
    for number, op in enumerate(walk.operations(module.operation)):
        op.attributes[NUMBER] = ir.IntegerAttr.get(integer, number)
    with ir.Location.unknown():
        read_as_by_xla(module)
    assert module.operation.verify()
    return module


def names(block: ir.Block) -> list[str]:
    return [op.operation.name.partition(".")[2] for op in block.operations]


def main_block(module: ir.Module) -> ir.Block:
    return walk.functions(module)["main"].regions[0].blocks[0]


def test_what_sums_nothing_is_a_multiplication(context: ir.Context) -> None:
    module = read(OUTER)
    spread = ["broadcast_in_dim"] * 2
    assert names(main_block(module)) == [*spread, "multiply", "return"]
    random = np.random.default_rng(0)
    x, y = (random.normal(size=size).astype("float32") for size in ((3, 2, 4), (2, 5, 3)))
    arguments = [ir.DenseElementsAttr.get(each) for each in (x, y)]
    [found] = (np.asarray(each) for each in stablehlo.eval_module(module, arguments))
    np.testing.assert_allclose(found, np.einsum("abc,bda->abcd", x, y), rtol=1e-6)


def test_a_product_that_sums_stays(context: ir.Context) -> None:
    summing = OUTER.replace("[0, 1] x [2, 0]", "[0] x [2]").replace("[] x []", "[1] x [0]")
    summing = summing.replace("3x2x4x5xf32", "3x4x5xf32")
    module = read(summing)
    assert names(main_block(module)) == ["dot_general", "return"]


def test_operands_stand_right_before_what_reads_them_first(context: ir.Context) -> None:
    wanted = ["cosine", "floor", "sine", "add", "abs", "negate", "return"]
    module = read(ORDER)
    assert names(main_block(module)) == wanted


def test_what_a_loop_reads_stands_before_it(context: ir.Context) -> None:
    module = read(LOOP)
    main = main_block(module)
    assert names(main) == ["abs", "sine", "while", "return"]
    [loop] = [op for op in main.operations if "while" in op.name]
    assert names(loop.regions[1].blocks[0]) == ["add", "add", "return"]
