// Steps that cannot be cut, and what is said of them.
// RUN: not hloom-opt %s -p stages --split-input-file -o %t 2>&1 | filecheck %s

// One product is one stage.
// CHECK: error: {{.*}}stages=2: the step has 1 part between which it can be cut
func.func public @main(%w: tensor<8x8xf32> {hloom.parameter}, %x: tensor<4x8xf32>, %ct: tensor<4x8xf32> {hloom.cotangent})
    -> (tensor<4x8xf32>, tensor<8x8xf32> {hloom.gradient}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.dot_general %x, %ct, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  return %0, %1 : tensor<4x8xf32>, tensor<8x8xf32>
}

// -----

// CHECK: error: {{.*}}an operation with an effect is in the step: rng
func.func public @main(%w: tensor<8xf32> {hloom.parameter}, %x: tensor<f32>, %ct: tensor<8xf32> {hloom.cotangent})
    -> (tensor<8xf32>, tensor<8xf32> {hloom.gradient}) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %shape = stablehlo.constant dense<8> : tensor<1xi64>
  %0 = stablehlo.rng %x, %one, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<8xf32>
  %1 = stablehlo.multiply %0, %w : tensor<8xf32>
  %2 = stablehlo.multiply %0, %ct : tensor<8xf32>
  return %1, %2 : tensor<8xf32>, tensor<8xf32>
}

// CHECK-NOT: {{error|warning}}:
