// On several devices: inside of a manual computation of all axes, and nowhere else.
// RUN: hloom-opt %s -p "uninitialized-stacks{min_bytes=1}" --target h100_sxm | filecheck %s

// CHECK-LABEL: func.func public @main
module @partitioned attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: tensor<2x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    // XLA's partitioner would make the whole buffer on each device, and take a part.
    // CHECK-NOT:   hloom.uninitialized
    // CHECK:       stablehlo.while
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4x2x8xf32>
    %0:2 = stablehlo.while(%i = %c, %s = %zeros) : tensor<i32>, tensor<4x2x8xf32>
      cond {
        %n = stablehlo.constant dense<4> : tensor<i32>
        %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %1 = stablehlo.reshape %x : (tensor<2x8xf32>) -> tensor<1x2x8xf32>
        %2 = stablehlo.dynamic_update_slice %s, %1, %i, %c, %c : (tensor<4x2x8xf32>, tensor<1x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x2x8xf32>
        %3 = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %3, %2 : tensor<i32>, tensor<4x2x8xf32>
      }
    %t = stablehlo.transpose %0#1, dims = [1, 0, 2] : (tensor<4x2x8xf32>) -> tensor<2x4x8xf32>
    // CHECK:       sdy.manual_computation
    %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}, {}]>] manual_axes={"x"} (%y: tensor<1x8xf32>) {
      // CHECK:       %[[ANY:.*]] = stablehlo.composite "hloom.uninitialized" {{.*}} : () -> tensor<4x1x8xf32>
      // CHECK-NEXT:  stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[ANY]])
      %nought = stablehlo.constant dense<0.0> : tensor<f32>
      %d = stablehlo.constant dense<0> : tensor<i32>
      %part = stablehlo.broadcast_in_dim %nought, dims = [] : (tensor<f32>) -> tensor<4x1x8xf32>
      %1:2 = stablehlo.while(%i = %d, %s = %part) : tensor<i32>, tensor<4x1x8xf32>
        cond {
          %n = stablehlo.constant dense<4> : tensor<i32>
          %2 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %2 : tensor<i1>
        } do {
          %one = stablehlo.constant dense<1> : tensor<i32>
          %2 = stablehlo.reshape %y : (tensor<1x8xf32>) -> tensor<1x1x8xf32>
          %3 = stablehlo.dynamic_update_slice %s, %2, %i, %d, %d : (tensor<4x1x8xf32>, tensor<1x1x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x1x8xf32>
          %4 = stablehlo.add %i, %one : tensor<i32>
          stablehlo.return %4, %3 : tensor<i32>, tensor<4x1x8xf32>
        }
      %5 = stablehlo.transpose %1#1, dims = [1, 0, 2] : (tensor<4x1x8xf32>) -> tensor<1x4x8xf32>
      sdy.return %5 : tensor<1x4x8xf32>
    } : (tensor<2x8xf32>) -> tensor<2x4x8xf32>
    return %t, %r : tensor<2x4x8xf32>, tensor<2x4x8xf32>
  }
}
