// Which slices cse makes read an operand of the concatenation or the padded value that they cut.
// RUN: hloom-opt %s -p cse -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p cse | diff %t -

// All of one operand is that operand: the other one is not waited for.
// CHECK-LABEL: func.func public @whole
func.func public @whole(%x: tensor<4x3xf32>, %y: tensor<4x5xf32>) -> tensor<4x5xf32> {
  %0 = stablehlo.concatenate %x, %y, dim = 1 : (tensor<4x3xf32>, tensor<4x5xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.slice %0 [0:4, 3:8] : (tensor<4x8xf32>) -> tensor<4x5xf32>
  // CHECK-NEXT: return %arg1
  return %1 : tensor<4x5xf32>
}

// A part of one operand is a slice of it, once where the program has it already.
// CHECK-LABEL: func.func public @part
func.func public @part(%x: tensor<3xf32>, %y: tensor<5xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %0 = stablehlo.concatenate %x, %y, dim = 0 : (tensor<3xf32>, tensor<5xf32>) -> tensor<8xf32>
  // CHECK-NEXT: %[[P:.*]] = stablehlo.slice %arg1 [1:5:3]
  %1 = stablehlo.slice %0 [4:8:3] : (tensor<8xf32>) -> tensor<2xf32>
  %2 = stablehlo.slice %y [1:5:3] : (tensor<5xf32>) -> tensor<2xf32>
  // CHECK-NEXT: return %[[P]], %[[P]]
  return %1, %2 : tensor<2xf32>, tensor<2xf32>
}

// A slice of two operands stays.
// CHECK-LABEL: func.func public @two
func.func public @two(%x: tensor<3xf32>, %y: tensor<5xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %[[C:.*]] = stablehlo.concatenate
  %0 = stablehlo.concatenate %x, %y, dim = 0 : (tensor<3xf32>, tensor<5xf32>) -> tensor<8xf32>
  // CHECK-NEXT: stablehlo.slice %[[C]] [1:5]
  %1 = stablehlo.slice %0 [1:5] : (tensor<8xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// What was padded, and the padding; concatenations and padded values within one another.
// CHECK-LABEL: func.func public @padded
func.func public @padded(%x: tensor<3xf32>, %y: tensor<5xf32>, %s: tensor<f32>) -> (tensor<3xf32>, tensor<2xf32>, tensor<3xf32>) {
  %0 = stablehlo.concatenate %x, %y, dim = 0 : (tensor<3xf32>, tensor<5xf32>) -> tensor<8xf32>
  %1 = stablehlo.slice %0 [0:3] : (tensor<8xf32>) -> tensor<3xf32>
  %2 = stablehlo.pad %1, %s, low = [2], high = [3], interior = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<8xf32>
  %3 = stablehlo.slice %2 [2:5] : (tensor<8xf32>) -> tensor<3xf32>
  // CHECK-NEXT: %[[S:.*]] = stablehlo.broadcast_in_dim %arg2
  %4 = stablehlo.slice %2 [6:8] : (tensor<8xf32>) -> tensor<2xf32>
  // CHECK-NEXT: %[[P:.*]] = stablehlo.pad {{.*}} interior = [1]
  %5 = stablehlo.pad %x, %s, low = [0], high = [0], interior = [1] : (tensor<3xf32>, tensor<f32>) -> tensor<5xf32>
  // CHECK-NEXT: %[[Q:.*]] = stablehlo.slice %[[P]]
  %6 = stablehlo.slice %5 [0:3] : (tensor<5xf32>) -> tensor<3xf32>
  // CHECK-NEXT: return %arg0, %[[S]], %[[Q]]
  return %3, %4, %6 : tensor<3xf32>, tensor<2xf32>, tensor<3xf32>
}

// A sharding is on the slice's own value: it stays.
// CHECK-LABEL: func.func public @with_an_attribute
func.func public @with_an_attribute(%x: tensor<3xf32>, %y: tensor<5xf32>) -> tensor<3xf32> {
  // CHECK-NEXT: stablehlo.concatenate
  %0 = stablehlo.concatenate %x, %y, dim = 0 : (tensor<3xf32>, tensor<5xf32>) -> tensor<8xf32>
  // CHECK-NEXT: stablehlo.slice {{.*}} {mhlo.sharding = "{replicated}"}
  %1 = stablehlo.slice %0 [0:3] {mhlo.sharding = "{replicated}"} : (tensor<8xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}
