// Two layers become two stages: a product each, forward and backward, and what crosses is named.
// RUN: hloom-opt %s -p stages -o %t && filecheck %s < %t
// RUN: hloom-opt %s -p "stages{weights=on}" -o %t.w && filecheck %s --check-prefix=WEIGHTS < %t.w

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[H:.*]] = call @stage0_forward(%arg0, %arg2)
// CHECK:         %[[Y:.*]] = call @stage1_forward(%arg1, %[[H]])
// CHECK:         %[[B:.*]]:2 = call @stage1_backward(%arg1, %[[H]], %arg3)
// CHECK:         %[[A:.*]] = call @stage0_backward(%arg2, %[[B]]#0)
// CHECK:         return %[[Y]], %[[A]], %[[B]]#1
// CHECK-LABEL: func.func private @stage0_forward(
// CHECK-SAME:      -> (tensor<4x8xf32> {hloom.residual = "dot_general {{[^"]*}}"})
// CHECK:         stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
// CHECK-LABEL: func.func private @stage0_backward(
// CHECK-LABEL: func.func private @stage1_forward(
// CHECK-LABEL: func.func private @stage1_backward(
// CHECK-SAME:      %{{.*}}: tensor<8x8xf32>, %{{.*}}: tensor<4x8xf32> {hloom.residual
// CHECK-COUNT-2: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general

// No stage waits for gradients of parameters; nothing waits for what the first stage gives.
// WEIGHTS-LABEL: func.func public @main(
// WEIGHTS:         call @stage1_backward(
// WEIGHTS:         call @stage1_weights(
// WEIGHTS:         call @stage0_backward(
// WEIGHTS-NOT:     @stage0_weights
func.func public @main(%v: tensor<8x8xf32> {hloom.parameter}, %w: tensor<8x8xf32> {hloom.parameter},
                       %x: tensor<4x8xf32>, %ct: tensor<4x8xf32> {hloom.cotangent})
    -> (tensor<4x8xf32>, tensor<8x8xf32> {hloom.gradient}, tensor<8x8xf32> {hloom.gradient}) {
  %0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %2 = stablehlo.dot_general %0, %ct, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %3 = stablehlo.dot_general %ct, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  return %1, %4, %2 : tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
