"""Arguments of manual computations that are constants."""

from __future__ import annotations

import pytest
from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.passes.analysis.manual_pairs import constant_arguments
from hloom.passes.analysis.points.evaluator import Scope
from hloom.passes.analysis.value_numbers import ValueNumbers
from hloom.passes.ir import walk

PLACED = '[#sdy.sharding<@mesh, [{"a"}]>]'
MODULE = """
sdy.mesh @mesh = <["a"=2]>
func.func @main() -> tensor<8xf32> {
  %0 = sdy.manual_computation() in_shardings=[] out_shardings=PLACED manual_axes={"a"} () {
    CODE
    sdy.return %made : tensor<4xf32>
  } : () -> tensor<8xf32>
  %1 = sdy.manual_computation(%0) in_shardings=PLACED out_shardings=PLACED manual_axes={"a"}
      (%given: tensor<4xf32>) {
    sdy.return %given : tensor<4xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
"""
SPREAD = "%made = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("%made = stablehlo.iota dim = 0 : tensor<4xf32>", 1),
        (f"%f = stablehlo.constant dense<2.0> : tensor<f32>\n{SPREAD}", 1),
        (
            "%n = stablehlo.partition_id : tensor<ui32>\n"
            f"%f = stablehlo.convert %n : (tensor<ui32>) -> tensor<f32>\n{SPREAD}",
            0,
        ),
        (
            "%low = stablehlo.constant dense<0.0> : tensor<f32>\n"
            "%high = stablehlo.constant dense<1.0> : tensor<f32>\n"
            "%size = stablehlo.constant dense<4> : tensor<1xi64>\n"
            "%made = stablehlo.rng %low, %high, %size, distribution = UNIFORM : "
            "(tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>",
            0,
        ),
    ],
)
def test_only_what_is_the_same_everywhere_is_constant(code: str, count: int) -> None:
    text = MODULE.replace("PLACED", PLACED).replace("CODE", code)
    with make_context():
        module = ir.Module.parse(text)
    block = next(iter(walk.functions(module).values())).regions[0].blocks[0]
    second = [view.operation for view in block.operations][1]
    scope = Scope(ValueNumbers(), [block], {})
    assert len(list(constant_arguments(second, scope))) == count
