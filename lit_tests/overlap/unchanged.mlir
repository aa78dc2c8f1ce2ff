// Exchanges that overlap leaves as they are, and why.
// RUN: hloom-opt %s --split-input-file -o %t && hloom-opt %s --split-input-file -p "overlap{min_bytes=1B min_rows=1}" --target h100_sxm | diff %t -
// RUN: hloom-opt %s --split-input-file -p "overlap{min_bytes=1B min_rows=1}" --target h100_sxm --print-plan=json -o %t 2>&1 | filecheck %s
// RUN: hloom-opt %s --split-input-file -p "overlap{min_bytes=1B min_rows=1}" --print-plan=json -o %t 2>&1 | filecheck %s --check-prefix CPU

// CPU: does nothing on a CPU: its devices share one memory
// CHECK: its axis is contracted by dot_general
// CHECK: reverse {{.*}} reads it too, which is no product
// CHECK: its attributes tell XLA how to schedule or pipeline it: is_pipelineable
// CHECK: its axis is a batch of dot_general
// CHECK: its devices are in more than one domain of 8 that fast links join
// CHECK: XLA runs it beside the next iteration of its loop already

// The product sums over the gathered axis.
module @contracted attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<8x4xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<8x4xf32>
      %p = stablehlo.constant dense<1.0> : tensor<4x8xf32>
      %y = stablehlo.dot_general %p, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
      sdy.return %y : tensor<4x4xf32>
    } : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    return %r : tensor<8x4xf32>
  }
}

// -----

// Something reads the gathered value that is no product.
module @read_by_another attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<16x4xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<8x4xf32>
      %p = stablehlo.dot_general %g, %b, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %s = stablehlo.reverse %g, dims = [0] : tensor<8x4xf32>
      %y = stablehlo.add %p, %s : tensor<8x4xf32>
      sdy.return %y : tensor<8x4xf32>
    } : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
    return %r : tensor<16x4xf32>
  }
}

// -----

// XLA is told to run it an iteration ahead.
module @pipelined attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<16x4xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> {mhlo.frontend_attributes = {is_pipelineable = "true"}} : (tensor<4x4xf32>) -> tensor<8x4xf32>
      %y = stablehlo.dot_general %g, %b, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      sdy.return %y : tensor<8x4xf32>
    } : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
    return %r : tensor<16x4xf32>
  }
}

// -----

// A product for each element of the gathered axis.
module @batch attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x2x4xf32>, %w: tensor<8x4x2xf32>) -> tensor<16x2x2xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}, {}]>, <@mesh, [{}, {}, {}]>] out_shardings=[<@mesh, [{"t"}, {}, {}]>] manual_axes={"t"} (%a: tensor<4x2x4xf32>, %b: tensor<8x4x2xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x2x4xf32>) -> tensor<8x2x4xf32>
      %y = stablehlo.dot_general %g, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x2x4xf32>, tensor<8x4x2xf32>) -> tensor<8x2x2xf32>
      sdy.return %y : tensor<8x2x2xf32>
    } : (tensor<8x2x4xf32>, tensor<8x4x2xf32>) -> tensor<16x2x2xf32>
    return %r : tensor<16x2x2xf32>
  }
}

// -----

// Two servers of eight devices exchange.
module @far attributes {mhlo.num_partitions = 16 : i32} {
  sdy.mesh @mesh = <["t"=16]>
  func.func public @main(%x: tensor<16x4xf32>, %w: tensor<4x4xf32>) -> tensor<256x4xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<1x4xf32>, %b: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]> : tensor<1x16xi64>, use_global_device_ids}> : (tensor<1x4xf32>) -> tensor<16x4xf32>
      %y = stablehlo.dot_general %g, %b, contracting_dims = [1] x [0] : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
      sdy.return %y : tensor<16x4xf32>
    } : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<256x4xf32>
    return %r : tensor<256x4xf32>
  }
}

// -----

// XLA moves a sum that a loop only stacks to the next iteration.
module @stacked attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x8xf32>, %w: tensor<8x4xf32>) -> tensor<6x4x4xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{}, {"t"}]>, <@mesh, [{"t"}, {}]>] out_shardings=[<@mesh, [{"t"}, {}, {}]>] manual_axes={"t"} (%a: tensor<8x4xf32>, %b: tensor<4x4xf32>) {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %empty = stablehlo.constant dense<0.0> : tensor<3x4x4xf32>
      %l:2 = stablehlo.while(%i = %zero, %s = %empty) : tensor<i32>, tensor<3x4x4xf32>
      cond {
        %n = stablehlo.constant dense<3> : tensor<i32>
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %y = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
        %t = "stablehlo.reduce_scatter"(%y) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %sum = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %sum : tensor<f32>
        }) : (tensor<8x4xf32>) -> tensor<4x4xf32>
        %u = stablehlo.reshape %t : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
        %z = stablehlo.constant dense<0> : tensor<i32>
        %v = stablehlo.dynamic_update_slice %s, %u, %i, %z, %z : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %k = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %k, %v : tensor<i32>, tensor<3x4x4xf32>
      }
      sdy.return %l#1 : tensor<3x4x4xf32>
    } : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<6x4x4xf32>
    return %r : tensor<6x4x4xf32>
  }
}
