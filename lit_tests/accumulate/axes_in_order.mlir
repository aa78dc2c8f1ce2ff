// The manual axes stand in the order of the mesh, in which XLA wants them, whatever the batch's is.
// RUN: hloom-opt %s -p "accumulate{microbatches=4}" | filecheck %s

sdy.mesh @mesh = <["a"=2, "b"=2]>

// CHECK-LABEL: func.func public @main
// CHECK:         sdy.manual_computation(%arg1, %arg0) in_shardings=[<@mesh, [{"b", "a"}, {}]>, <@mesh, [{}, {}]>]
// CHECK-SAME:      manual_axes={"a", "b"}
func.func public @main(%w: tensor<16x4xf32>, %x: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b", "a"}, {}]>}) -> tensor<16x4xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x16xf32>, tensor<16x4xf32>) -> tensor<16x4xf32>
  %t = stablehlo.tanh %h : tensor<16x4xf32>
  %d = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<16x16xf32>, tensor<16x4xf32>) -> tensor<16x4xf32>
  %u = stablehlo.subtract %w, %d : tensor<16x4xf32>
  return %u : tensor<16x4xf32>
}
