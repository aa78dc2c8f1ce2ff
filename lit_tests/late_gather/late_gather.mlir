// Gathers that are done behind what narrows their value.
// RUN: hloom-opt %s -p "late-gather{min_bytes=1B}" --target h100_sxm | filecheck %s

// The scale comes of the maxima of both devices, and what is gathered has a byte an element.
// CHECK-LABEL: module @quantised
// CHECK:         sdy.manual_computation{{.*}} (%[[X:.*]]: tensor<4x4xf32>)
// CHECK-NEXT:    %[[SIZE:.*]] = stablehlo.abs %[[X]] : tensor<4x4xf32>
// CHECK:         %[[OWN:.*]] = stablehlo.reduce(%[[SIZE]] init: %[[ZERO:.*]]) applies stablehlo.maximum
// CHECK-NEXT:    %[[ROW:.*]] = stablehlo.reshape %[[OWN]]
// CHECK-NEXT:    %[[ALL:.*]] = "stablehlo.all_gather"(%[[ROW]]){{.*}} -> tensor<2xf32>
// CHECK-NEXT:    %[[MAX:.*]] = stablehlo.reduce(%[[ALL]] init: %[[ZERO]]) applies stablehlo.maximum
// CHECK-NEXT:    %[[SCALE:.*]] = stablehlo.broadcast_in_dim %[[MAX]]
// CHECK-NEXT:    %[[SCALED:.*]] = stablehlo.divide %[[X]], %[[SCALE]] : tensor<4x4xf32>
// CHECK-NEXT:    %[[BYTES:.*]] = stablehlo.convert %[[SCALED]] : (tensor<4x4xf32>) -> tensor<4x4xi8>
// CHECK-NEXT:    %[[G:.*]] = "stablehlo.all_gather"(%[[BYTES]]){{.*}} -> tensor<8x4xi8>
// CHECK-NEXT:    sdy.return %[[G]]
module @quantised attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>) -> tensor<16x4xi8> {
    %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"t"}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<8x4xf32>
      %n = stablehlo.abs %g : tensor<8x4xf32>
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %m = stablehlo.reduce(%n init: %zero) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
      %s = stablehlo.broadcast_in_dim %m, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
      %d = stablehlo.divide %g, %s : tensor<8x4xf32>
      %q = stablehlo.convert %d : (tensor<8x4xf32>) -> tensor<8x4xi8>
      sdy.return %q : tensor<8x4xi8>
    } : (tensor<8x4xf32>) -> tensor<16x4xi8>
    return %r : tensor<16x4xi8>
  }
}
