// Steps that are no two programs, and what is said of them.
// RUN: not hloom-opt %s -p "split{residuals=16B}" --split-input-file -o %t 2>&1 | filecheck %s

// Below what can be reached: what may not be run twice crosses.
// CHECK: error: {{.*}}residuals=16 B is less than the least that can cross: 32 B on a device, whatever is computed again (32 B of tensor<8xf32> of custom_call
func.func public @main(%x: tensor<8xf32>, %ct: tensor<8xf32> {hloom.cotangent}) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = stablehlo.custom_call @a_library(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.multiply %0, %ct : tensor<8xf32>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}

// -----

// CHECK: error: {{.*}}an operation with an effect is in the step: rng
func.func public @main(%x: tensor<f32>, %ct: tensor<8xf32> {hloom.cotangent}) -> (tensor<8xf32>, tensor<8xf32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %shape = stablehlo.constant dense<8> : tensor<1xi64>
  %0 = stablehlo.rng %x, %one, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<8xf32>
  %1 = stablehlo.multiply %0, %ct : tensor<8xf32>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}

// -----

// A token is no array: it cannot be handed over.
// CHECK: error: {{.*}}which is no array that a program can return
func.func public @main(%x: tensor<8xf32>, %ct: tensor<8xf32> {hloom.cotangent}) -> (tensor<8xf32>, tensor<8xf32>) {
  %token = stablehlo.create_token : !stablehlo.token
  %0:2 = stablehlo.custom_call @a_library(%x, %token) : (tensor<8xf32>, !stablehlo.token) -> (tensor<8xf32>, !stablehlo.token)
  %1:2 = stablehlo.custom_call @another(%ct, %0#1) : (tensor<8xf32>, !stablehlo.token) -> (tensor<8xf32>, !stablehlo.token)
  return %0#0, %1#0 : tensor<8xf32>, tensor<8xf32>
}

// CHECK-NOT: {{error|warning}}:
