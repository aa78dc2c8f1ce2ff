// A head's logits, in chunks of tokens.
// RUN: hloom-opt %s -p "chunk{chunks=4 min_bytes=1KiB},cse" -o %t && filecheck %s < %t
// Twice is once: chunks are smaller than min_bytes.
// RUN: hloom-opt %t -p "chunk{chunks=4 min_bytes=1KiB}" | diff %t -
// RUN: hloom-opt %s -p "chunk{chunks=4 min_bytes=1KiB}" --print-plan=json -o %t 2>&1 | filecheck %s --check-prefix=PLAN

// PLAN: "summary": "1 region of 9 operations run in chunks, 2.00 KiB become 1.03 KiB"
// PLAN-SAME: "type": "tensor<8x64xf32>"
// PLAN-SAME: "4 chunks of 2, of 8", "axis 0", 9, 2,

// CHECK-LABEL: func.func public @main
// CHECK-NOT:     tensor<8x64xf32>
// CHECK:         stablehlo.while
// CHECK:           %[[X:.*]] = stablehlo.dynamic_slice %arg0, %{{.*}}, sizes = [2, 16]
// CHECK:           %[[L:.*]] = stablehlo.dot_general %[[X]], %arg1, contracting_dims = [1] x [1]
// CHECK-SAME:        -> tensor<2x64xf32>
// CHECK:           stablehlo.reduce(%[[L]] init: %{{.*}}) applies stablehlo.maximum across dimensions = [1]
// CHECK:           %[[G:.*]] = stablehlo.exponential %{{.*}} : tensor<2x64xf32>
// CHECK:           %[[W:.*]] = stablehlo.dot_general %[[G]], %[[X]], contracting_dims = [0] x [0]
// CHECK-SAME:        -> tensor<64x16xf32>
// CHECK:           stablehlo.add %iterArg{{.*}}, %[[W]] : tensor<64x16xf32>
// CHECK-NOT:     tensor<8x64xf32>
func.func public @main(%x: tensor<8x16xf32>, %w: tensor<64x16xf32>) -> (tensor<8xf32>, tensor<64x16xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x64xf32>) -> tensor<8x64xf32>
  %2 = stablehlo.reduce(%1 init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
  %4 = stablehlo.subtract %1, %3 : tensor<8x64xf32>
  %5 = stablehlo.exponential %4 : tensor<8x64xf32>
  %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %7 = stablehlo.dot_general %x, %5, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x64xf32>) -> tensor<16x64xf32>
  %8 = stablehlo.transpose %7, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
  return %6, %8 : tensor<8xf32>, tensor<64x16xf32>
}
