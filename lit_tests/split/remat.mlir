// Behind remat: what it computes again behind a gradient stays in the backward function, and what it
// keeps crosses.
// RUN: hloom-opt %s -p "remat{min_bytes=0},split" --target h100_sxm -o %t && filecheck %s < %t

// CHECK-LABEL: func.func private @forward
// CHECK-SAME:    -> (tensor<256x256xf32>, tensor<256x256xbf16> {hloom.residual
// CHECK-NOT:     optimization_barrier
// CHECK-LABEL: func.func private @backward
// CHECK:         optimization_barrier
// CHECK:         return
func.func public @main(%w: tensor<256x256xbf16>, %x: tensor<256x256xbf16>, %ct: tensor<256x256xf32> {hloom.cotangent})
    -> (tensor<256x256xf32>, tensor<256x256xf32> {hloom.gradient}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<256x256xbf16>, tensor<256x256xbf16>) -> tensor<256x256xbf16>
  %1 = stablehlo.convert %0 : (tensor<256x256xbf16>) -> tensor<256x256xf32>
  %2 = stablehlo.exponential %1 : tensor<256x256xf32>
  %3 = stablehlo.dot_general %2, %1, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %4 = stablehlo.dot_general %ct, %1, contracting_dims = [1] x [1] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %5 = stablehlo.multiply %4, %2 : tensor<256x256xf32>
  %6 = stablehlo.dot_general %5, %2, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %3, %6 : tensor<256x256xf32>, tensor<256x256xf32>
}
