// What remat writes: a barrier that waits for a gradient, one that waits for nothing of the backward
// pass, and one that has the backward pass wait for the loss.
// RUN: hloom-opt %s -p split -o %t && filecheck %s < %t

// The second computation of the sine is merged with the first, and the loss waits for no cotangent.
// CHECK-LABEL: func.func private @forward(%arg0: tensor<8xf32>) -> (tensor<f32>, tensor<8xf32> {hloom.residual = "tanh
// CHECK-NOT:     optimization_barrier
// CHECK:         stablehlo.sine
// CHECK-NOT:     stablehlo.sine
// CHECK:         return
// Nor is the loss computed again for a barrier behind which nothing reads it.
// CHECK-LABEL: func.func private @backward
// CHECK-NEXT:    %{{.*}} = stablehlo.optimization_barrier %arg1 : tensor<8xf32>
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %{{.*}} : tensor<8xf32>, tensor<8xf32>
// CHECK-NEXT:    stablehlo.cosine %[[B]]#0
// CHECK:         return
func.func public @main(%x: tensor<8xf32>, %ct: tensor<8xf32> {hloom.cotangent}) -> (tensor<f32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.custom_call @a_library(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.tanh %0 : tensor<8xf32>
  %2 = stablehlo.sine %1 : tensor<8xf32>
  %3 = stablehlo.optimization_barrier %1 : tensor<8xf32>
  %4 = stablehlo.sine %3 : tensor<8xf32>
  %5 = stablehlo.add %2, %4 : tensor<8xf32>
  %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %7:2 = stablehlo.optimization_barrier %6, %ct : tensor<f32>, tensor<8xf32>
  %8:2 = stablehlo.optimization_barrier %1, %7#1 : tensor<8xf32>, tensor<8xf32>
  %9 = stablehlo.cosine %8#0 : tensor<8xf32>
  %10 = stablehlo.multiply %8#1, %9 : tensor<8xf32>
  return %7#0, %10 : tensor<f32>, tensor<8xf32>
}
