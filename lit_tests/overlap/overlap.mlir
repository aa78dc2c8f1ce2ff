// Exchanges of two devices in steps beside products.
// RUN: hloom-opt %s --split-input-file -p "overlap{min_bytes=1B min_rows=1}" --target h100_sxm | filecheck %s

// Each device sends its rows and multiplies them; then it multiplies those that came.
// CHECK-LABEL: module @gathered
// CHECK:         sdy.manual_computation{{.*}} (%[[X:.*]]: tensor<4x4xf32>, %[[W:.*]]: tensor<4x3xf32>)
// CHECK:         %[[COMES:.*]] = "stablehlo.collective_permute"(%[[X]])
// CHECK-SAME:      source_target_pairs = dense<{{\[\[}}0, 1], [1, 0]]>
// CHECK-NEXT:    %[[OWN:.*]] = stablehlo.dot_general %[[X]], %[[W]]
// CHECK:         %[[FIRST:.*]] = stablehlo.dynamic_update_slice %{{.*}}, %[[OWN]]
// CHECK-NEXT:    %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[COMES]], %[[FIRST]]
// CHECK-NEXT:    %[[OTHER:.*]] = stablehlo.dot_general %[[HELD]]#0, %[[W]]
// CHECK:         %[[BOTH:.*]] = stablehlo.dynamic_update_slice %[[HELD]]#1, %[[OTHER]]
// CHECK-NEXT:    sdy.return %[[BOTH]]
module @gathered attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x6xf32>) -> tensor<8x6xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {"t"}]>] out_shardings=[<@mesh, [{}, {"t"}]>] manual_axes={"t"} (%a: tensor<4x4xf32>, %b: tensor<4x3xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<8x4xf32>
      %y = stablehlo.dot_general %g, %b, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
      sdy.return %y : tensor<8x3xf32>
    } : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    return %r : tensor<8x6xf32>
  }
}

// -----

// What the other device is to have is multiplied first, and moves while the own rows are.
// CHECK-LABEL: module @scattered
// CHECK:         sdy.manual_computation{{.*}} (%[[X:.*]]: tensor<8x2xf32>, %[[W:.*]]: tensor<2x6xf32>)
// CHECK:         %[[ROWS:.*]] = stablehlo.dynamic_slice %[[X]]{{.*}} sizes = [4, 2]
// CHECK-NEXT:    %[[OTHER:.*]] = stablehlo.dot_general %[[ROWS]], %[[W]]
// CHECK:         %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[OTHER]], %[[X]]
// CHECK-NEXT:    %[[COMES:.*]] = "stablehlo.collective_permute"(%[[HELD]]#0)
// CHECK:         %[[ROWS:.*]] = stablehlo.dynamic_slice %[[HELD]]#1{{.*}} sizes = [4, 2]
// CHECK-NEXT:    %[[OWN:.*]] = stablehlo.dot_general %[[ROWS]], %[[W]]
// CHECK-NEXT:    %[[MADE:.*]] = stablehlo.optimization_barrier %[[OWN]]
// CHECK-NEXT:    %[[SUM:.*]] = stablehlo.add %[[COMES]], %[[MADE]]
// CHECK-NEXT:    sdy.return %[[SUM]]
module @scattered attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x6xf32>) -> tensor<8x6xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{}, {"t"}]>, <@mesh, [{"t"}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<8x2xf32>, %b: tensor<2x6xf32>) {
      %y = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x2xf32>, tensor<2x6xf32>) -> tensor<8x6xf32>
      %s = "stablehlo.reduce_scatter"(%y) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %m: tensor<f32>):
        %sum = stablehlo.add %l, %m : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<8x6xf32>) -> tensor<4x6xf32>
      sdy.return %s : tensor<4x6xf32>
    } : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    return %r : tensor<8x6xf32>
  }
}

// -----

// An all-reduce is a sum that is scattered, and a gather of what is scattered.
// CHECK-LABEL: module @summed
// CHECK:         %[[COMES:.*]] = "stablehlo.collective_permute"
// CHECK:         %[[SUM:.*]] = stablehlo.add %[[COMES]], %{{.*}} : tensor<4x6xf32>
// CHECK-NEXT:    %[[ALL:.*]] = "stablehlo.all_gather"(%[[SUM]])
// CHECK-NEXT:    sdy.return %[[ALL]]
module @summed attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x6xf32>) -> tensor<8x6xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{}, {"t"}]>, <@mesh, [{"t"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"t"} (%a: tensor<8x2xf32>, %b: tensor<2x6xf32>) {
      %y = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x2xf32>, tensor<2x6xf32>) -> tensor<8x6xf32>
      %s = "stablehlo.all_reduce"(%y) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %m: tensor<f32>):
        %sum = stablehlo.add %l, %m : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<8x6xf32>) -> tensor<8x6xf32>
      sdy.return %s : tensor<8x6xf32>
    } : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    return %r : tensor<8x6xf32>
  }
}
