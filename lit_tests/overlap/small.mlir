// Exchanges that are too small to be done in steps.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p "overlap{min_bytes=1B}" --target h100_sxm | diff %t -
// RUN: hloom-opt %s -p "overlap{min_bytes=1B}" --target h100_sxm --print-plan=json -o %t 2>&1 | filecheck %s
// RUN: hloom-opt %s -p "overlap{min_bytes=129B min_rows=4}" --target h100_sxm --print-plan=json -o %t 2>&1 | filecheck %s --check-prefix BYTES
// RUN: hloom-opt %s -p "overlap{min_bytes=128B min_rows=4}" --target h100_sxm | filecheck %s --check-prefix RING

// CHECK: a step of dot_general {{.*}} would have 4 rows: with less than 512 products lose more than is hidden
// BYTES: it exchanges less than 129 B
// RING: stablehlo.collective_permute
module @small attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["t"=2]>
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<16x4xf32> {
    %r = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"t"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"t"}, {}]>] manual_axes={"t"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<8x4xf32>
      %y = stablehlo.dot_general %g, %b, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      sdy.return %y : tensor<8x4xf32>
    } : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
    return %r : tensor<16x4xf32>
  }
}
