"""Meshes of a module, manual axes, partitions and replicas."""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.ir import mesh, walk

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
