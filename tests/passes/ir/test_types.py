"""Formats of floating-point types, by the numbers that they have.

Meshes of a module, manual axes, partitions and replicas. Parts of values that have the same
everywhere along an axis.
"""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf

from hloom._jax.modules import make_context
from hloom.passes.ir import mesh, walk
from hloom.passes.ir.parts import is_same_everywhere, part_of_same
from hloom.passes.ir.types import FloatFormat, float_format, holds

DTYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
NARROW = {"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"}


@pytest.mark.parametrize("name", DTYPES)
def test_a_format_is_that_of_the_dtype(name: str) -> None:
    known = jnp.finfo(DTYPES[name])
    with make_context():
        found = float_format(ir.Type.parse(name))
    assert found == FloatFormat(known.nexp, known.nmant)
    assert found.bits == known.bits


@pytest.mark.parametrize(
    ("wide", "narrow"), list(itertools.product(DTYPES, ["bf16", "f16", *NARROW]))
)
def test_what_holds_a_type_has_all_of_its_numbers(wide: str, narrow: str) -> None:
    dtypes = DTYPES | NARROW
    bits = jnp.finfo(dtypes[narrow]).bits
    codes = np.arange(2**bits).astype(f"uint{bits}")
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = codes.view(jnp.dtype(dtypes[narrow])).astype(np.float64)
        numbers = numbers[np.isfinite(numbers)]
        kept = numbers.astype(jnp.dtype(dtypes[wide])).astype(np.float64)
    with make_context():
        said = holds(ir.Type.parse(wide), ir.FloatType(ir.Type.parse(narrow)))
    exact = bool((kept == numbers).all())
    assert exact or not said
    # Of types of 8 bits that is said of the wide ones alone.
    assert said or not exact or narrow in NARROW


MODULE = """
module attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @first = <["a"=2, "b"=4]>
  sdy.mesh @second = <["c"=3]>
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@first, [{"a"}, {}]>]
        out_shardings=[<@first, [{"a"}, {}]>] manual_axes={"a"} (%y: tensor<4x8xf32>) {
      %1 = stablehlo.tanh %y : tensor<4x8xf32>
      sdy.return %1 : tensor<4x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""


def test_meshes(context: ir.Context) -> None:
    with context:
        module = ir.Module.parse(MODULE, context)
        [computation] = (
            op for op in walk.operations(module.operation) if op.name == mesh.MANUAL_COMPUTATION
        )
        [tanh] = (op for op in walk.operations(module.operation) if op.name == "stablehlo.tanh")
        assert mesh.partition_count(module) == 8
        assert mesh.replica_count(module) == 1
        assert list(mesh.mesh_ops(module.operation)) == ["first", "second"]
        assert mesh.manual_axes(computation) == {"a"}
        named = mesh.mesh_of_computation(computation)
        assert named is not None
        found = mesh.resolved(named, tanh)
        assert found is not None
        assert mesh.axis_sizes(found) == {"a": 2, "b": 4}
        assert mesh.resolved(found, tanh) == found
        assert mesh.resolved(ir.FlatSymbolRefAttr.get("third"), tanh) is None
        assert mesh.is_in_manual_computation(tanh.block)
        assert not mesh.is_in_manual_computation(computation.block)


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
