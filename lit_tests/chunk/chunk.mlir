// A head's logits, in chunks of tokens.
// RUN: hloom-opt %s -p "chunk{chunks=4 min_bytes=64}" -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p "chunk{chunks=4 min_bytes=64}" | diff %t -
// RUN: hloom-opt %s -p "chunk{chunks=4 min_bytes=64}" --print-plan=json -o %t 2>&1 | filecheck %s --check-prefix=PLAN

// PLAN: "summary": "1 region of {{[0-9]+}} operations run in chunks
// PLAN-SAME: "type": "tensor<8x64xf32>"
// PLAN-SAME: "dimension": "axis 0"
// PLAN-SAME: "chunks": 4, "length": 2, "rest": 0

// CHECK-LABEL: func.func public @main
// CHECK:         stablehlo.while
// CHECK:           %[[X:.*]] = stablehlo.dynamic_slice %arg0, %{{.*}}, sizes = [2, 16]
// CHECK:           %[[L:.*]] = stablehlo.dot_general %[[X]], %arg1, contracting_dims = [1] x [1]
// CHECK-SAME:        -> tensor<2x64xf32>
// CHECK:           %[[G:.*]] = stablehlo.exponential %[[L]] : tensor<2x64xf32>
// CHECK:           stablehlo.dot_general %[[G]], %[[X]], contracting_dims = [0] x [0]
// CHECK-SAME:        -> tensor<64x16xf32>
// CHECK-NOT:     tensor<8x64xf32>
func.func public @main(%x: tensor<8x16xf32>, %w: tensor<64x16xf32>) -> (tensor<8xf32>, tensor<64x16xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x64xf32>) -> tensor<8x64xf32>
  %2 = stablehlo.exponential %1 : tensor<8x64xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %4 = stablehlo.dot_general %x, %2, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x64xf32>) -> tensor<16x64xf32>
  %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
  return %3, %5 : tensor<8xf32>, tensor<64x16xf32>
}
