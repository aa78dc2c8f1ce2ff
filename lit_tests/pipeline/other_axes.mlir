// The batch is over an axis of its own: each device runs the ticks on its part of the batch. Weights
// that are over that axis, too, are gathered before.
// RUN: hloom-opt %s -p "pipeline{microbatches=2}" | filecheck %s

sdy.mesh @mesh = <["data"=2, "stage"=2, "tensor"=2]>

// CHECK-LABEL: func.func public @parts
// CHECK:         sdy.manual_computation(%{{.*}}, %{{.*}}, %arg1, %arg0)
// CHECK-SAME:      in_shardings=[<@mesh, [{"stage", ?}]>, <@mesh, [{"data", ?}]>, <@mesh, [{"stage", ?}, {?}, {?}]>, <@mesh, [{"data", ?}, {?}]>]
// CHECK-SAME:      out_shardings=[<@mesh, [{"data", "stage", ?}, {?}]>]
// CHECK-SAME:      manual_axes={"data", "stage"}
// CHECK-SAME:      %{{.*}}: tensor<2x4x4xf32>, %{{.*}}: tensor<4x4xf32>)
// CHECK:           stablehlo.dot_general {{.*}} -> tensor<2x4xf32>
// A constraint says what it says of the axes that are left.
// CHECK:           sdy.sharding_constraint %{{.*}} <@mesh, [{}, {"tensor"}]> : tensor<2x4xf32>
// Each device sends to its successor in its row of the mesh.
// CHECK:           source_target_pairs = dense<{{\[\[}}0, 2], [1, 3], [4, 6], [5, 7]]>
func.func public @parts(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {"data"}, {}]>}) -> tensor<8x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %zero, %a = %x, %ws = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i32>
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %t = stablehlo.tanh %3 : tensor<8x4xf32>
    %4 = sdy.sharding_constraint %t <@mesh, [{"data"}, {"tensor"}]> : tensor<8x4xf32>
    stablehlo.return %n, %4, %ws : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  }
  return %0#1 : tensor<8x4xf32>
}
