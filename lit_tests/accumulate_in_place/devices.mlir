// Products in programs that are sharded over devices.
// RUN: hloom-opt %s --split-input-file -p accumulate-in-place --target h100_sxm | filecheck %s

// The batch is split, so that devices reduce the sums: in bfloat16, as they are.
// CHECK-LABEL: func.func public @reduced
// CHECK:         stablehlo.dot_general {{.*}} -> tensor<4x8xbf16>
// CHECK:         stablehlo.convert
module @reduced attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @reduced(%sum: tensor<4x8xf32>, %x: tensor<8x4xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}, %g: tensor<8x8xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> tensor<4x8xf32> {
    %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
    %f = stablehlo.convert %d : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %next = stablehlo.add %sum, %f : tensor<4x8xf32>
    return %next : tensor<4x8xf32>
  }
}

// -----

// What is kept is split, as tensor parallelism does: each device has its part of the sums.
// CHECK-LABEL: func.func public @own
// CHECK:         stablehlo.dot_general {{.*}} -> tensor<4x8xf32>
// CHECK-NOT:     stablehlo.convert
module @own attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @own(%sum: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}]>}, %x: tensor<8x4xbf16>, %g: tensor<8x8xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}]>}) {
    %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
    %f = stablehlo.convert %d : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %next = stablehlo.add %sum, %f : tensor<4x8xf32>
    return %next : tensor<4x8xf32>
  }
}

// -----

// Inside a manual computation a product is a device's own; what it sends stands there.
// CHECK-LABEL: func.func public @manual
// CHECK:         stablehlo.dot_general {{.*}} -> tensor<4x8xf32>
module @manual attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @manual(%sum: tensor<16x8xf32>, %x: tensor<8x4xbf16>, %g: tensor<8x8xbf16>) -> tensor<16x8xf32> {
    %r = sdy.manual_computation(%sum, %x, %g) in_shardings=[<@mesh, [{"d"}, {}]>, <@mesh, [{"d"}, {}]>, <@mesh, [{"d"}, {}]>] out_shardings=[<@mesh, [{"d"}, {}]>] manual_axes={"d"} (%s: tensor<4x8xf32>, %a: tensor<2x4xbf16>, %b: tensor<2x8xbf16>) {
      %d = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<2x4xbf16>, tensor<2x8xbf16>) -> tensor<4x8xbf16>
      %f = stablehlo.convert %d : (tensor<4x8xbf16>) -> tensor<4x8xf32>
      %next = stablehlo.add %s, %f : tensor<4x8xf32>
      sdy.return %next : tensor<4x8xf32>
    } : (tensor<16x8xf32>, tensor<8x4xbf16>, tensor<8x8xbf16>) -> tensor<16x8xf32>
    return %r : tensor<16x8xf32>
  }
}

// -----

// What is moved to the sum is moved in the narrower type.
// CHECK-LABEL: func.func public @moved
// CHECK:         stablehlo.dot_general {{.*}} -> tensor<4x8xbf16>
// CHECK:         stablehlo.convert
module @moved attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @moved(%sum: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}, %x: tensor<8x4xbf16>, %g: tensor<8x8xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
    %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"d"}]>]>} : (tensor<8x4xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
    %f = stablehlo.convert %d : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %next = stablehlo.add %sum, %f : tensor<4x8xf32>
    return %next : tensor<4x8xf32>
  }
}

// -----

// Shardings that are not Shardy's.
// CHECK-LABEL: func.func public @unknown
// CHECK:         stablehlo.dot_general {{.*}} -> tensor<4x8xbf16>
// CHECK:         stablehlo.convert
module @unknown attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @unknown(%sum: tensor<4x8xf32>, %x: tensor<8x4xbf16> {mhlo.sharding = "{devices=[4,1]<=[4]}"}, %g: tensor<8x8xbf16> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<4x8xf32> {
    %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
    %f = stablehlo.convert %d : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %next = stablehlo.add %sum, %f : tensor<4x8xf32>
    return %next : tensor<4x8xf32>
  }
}
