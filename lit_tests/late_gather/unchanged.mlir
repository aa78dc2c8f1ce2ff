// Gathers that late-gather leaves where they are.
// RUN: hloom-opt %s --split-input-file -o %t && hloom-opt %s --split-input-file -p "late-gather{min_bytes=1B}" --target h100_sxm | diff %t -

// A sum is rounded otherwise in other kernels.
module @sum attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<16x4xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<8x4xf32>
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %s = stablehlo.reduce(%g init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>
      %y = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<8xf32>) -> tensor<8x4xf32>
      sdy.return %y : tensor<8x4xf32>
    } : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
    return %r : tensor<16x4xf32>
  }
}

// -----

// Each device divides by a scale of its own.
module @own_scale attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<16x4xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<8x4xf32>
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %m = stablehlo.reduce(%a init: %zero) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
      %s = stablehlo.broadcast_in_dim %m, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
      %y = stablehlo.divide %g, %s : tensor<8x4xf32>
      sdy.return %y : tensor<8x4xf32>
    } : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
    return %r : tensor<16x4xf32>
  }
}
