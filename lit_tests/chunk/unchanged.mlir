// Programs that chunk leaves as they are.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p "chunk{chunks=4 min_bytes=1KiB}" | diff %t -
// RUN: hloom-opt %s -p "chunk{chunks=4 min_bytes=1KiB}" --print-plan=json -o %t 2>&1 | filecheck %s

// Rows take two loops: the second one reads the sum of all of them. Columns take as many.
// CHECK: "summary": "nothing to run in chunks: 2.00 KiB in tensor<8x64xf32> of multiply
// CHECK-SAME: along axis 0: it takes 2 loops
// CHECK-SAME: along axis 1: it takes 2 loops
func.func public @main(%x: tensor<8x16xf32>, %w: tensor<16x64xf32>) -> tensor<16x64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x64xf32>) -> tensor<8x64xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<f32>
  %2 = stablehlo.exponential %1 : tensor<f32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<8x64xf32>
  %4 = stablehlo.multiply %0, %3 : tensor<8x64xf32>
  %5 = stablehlo.dot_general %x, %4, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x64xf32>) -> tensor<16x64xf32>
  return %5 : tensor<16x64xf32>
}
