// Exchanges that overlap leaves as they are, and why.
// RUN: hloom-opt %s --split-input-file -o %t && hloom-opt %s --split-input-file -p "overlap{min_bytes=1B min_rows=1}" --target h100_sxm | diff %t -
// RUN: hloom-opt %s --split-input-file -p "overlap{min_bytes=1B min_rows=1}" --target h100_sxm --print-plan=json -o %t 2>&1 | filecheck %s
// RUN: hloom-opt %s --split-input-file -p "overlap{min_bytes=1B min_rows=1}" --print-plan=json -o %t 2>&1 | filecheck %s --check-prefix CPU

// CPU: does nothing on a CPU: its devices share one memory
// CHECK: its axis is contracted by dot_general
// CHECK: reverse {{.*}} reads it too, which is no product
// CHECK: its attributes tell XLA how to schedule or pipeline it: is_pipelineable

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
