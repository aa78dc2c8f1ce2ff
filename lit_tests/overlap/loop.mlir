// A ring of 32 devices is a loop.
// RUN: hloom-opt %s -p "overlap{min_bytes=1B min_rows=1}" --target %S/rack.toml | filecheck %s
// RUN: hloom-opt %s -p "overlap{min_bytes=1B min_rows=1 unroll=32}" --target %S/rack.toml | filecheck %s --check-prefix UNROLLED

// Each device sends its row and multiplies it; in each iteration those that came before, behind the loop the last one.
// CHECK:         sdy.manual_computation{{.*}} (%[[X:.*]]: tensor<1x4xf32>, %[[W:.*]]: tensor<4x4xf32>)
// CHECK:         %[[COMES:.*]] = "stablehlo.collective_permute"(%[[X]])
// CHECK-NEXT:    stablehlo.dot_general %[[X]], %[[W]]
// CHECK:         %[[FIRST:.*]]:2 = stablehlo.optimization_barrier %[[COMES]], %{{.*}} : tensor<1x4xf32>, tensor<32x4xf32>
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while({{.*}}, %[[PART:.*]] = %[[FIRST]]#0, %[[MADE:.*]] = %[[FIRST]]#1)
// CHECK:           dense<30>
// CHECK:         do {
// CHECK:           %[[NEXT:.*]] = "stablehlo.collective_permute"(%[[PART]])
// CHECK:           %[[ROW:.*]] = stablehlo.dot_general %[[PART]], %[[W]]
// CHECK:           %[[MORE:.*]] = stablehlo.dynamic_update_slice %[[MADE]], %[[ROW]]
// CHECK-NEXT:      %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[NEXT]], %[[MORE]]
// CHECK:           stablehlo.return %{{.*}}, %[[HELD]]#0, %[[HELD]]#1
// CHECK:         %[[LAST:.*]] = stablehlo.dot_general %[[LOOP]]#1, %[[W]]
// CHECK:         %[[ALL:.*]] = stablehlo.dynamic_update_slice %[[LOOP]]#2, %[[LAST]]
// CHECK-NEXT:    sdy.return %[[ALL]]
// UNROLLED-COUNT-31: stablehlo.collective_permute
// UNROLLED-NOT: stablehlo.while
module @gathered attributes {mhlo.num_partitions = 32 : i32} {
  sdy.mesh @mesh = <["t"=32]>
  func.func public @main(%x: tensor<32x4xf32>, %w: tensor<4x128xf32>) -> tensor<32x128xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {"t"}]>] out_shardings=[<@mesh, [{}, {"t"}]>] manual_axes={"t"} (%a: tensor<1x4xf32>, %b: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]]> : tensor<1x32xi64>, use_global_device_ids}> : (tensor<1x4xf32>) -> tensor<32x4xf32>
      %y = stablehlo.dot_general %g, %b, contracting_dims = [1] x [0] : (tensor<32x4xf32>, tensor<4x4xf32>) -> tensor<32x4xf32>
      sdy.return %y : tensor<32x4xf32>
    } : (tensor<32x4xf32>, tensor<4x128xf32>) -> tensor<32x128xf32>
    return %r : tensor<32x128xf32>
  }
}
