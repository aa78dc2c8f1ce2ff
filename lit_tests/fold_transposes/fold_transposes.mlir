// Which transposes products do without.
// RUN: hloom-opt %s -p fold-transposes -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p fold-transposes | diff %t -

// An operand.
// CHECK-LABEL: func.func public @operand
// CHECK-NEXT:    %[[P:.*]] = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1]
// CHECK-NEXT:    return %[[P]]
func.func public @operand(%x: tensor<2x4xf32>, %w: tensor<9x4xf32>) -> tensor<2x9xf32> {
  %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<9x4xf32>) -> tensor<4x9xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x9xf32>) -> tensor<2x9xf32>
  return %1 : tensor<2x9xf32>
}

// One that is converted after it was transposed.
// CHECK-LABEL: func.func public @converted
// CHECK-NEXT:    %[[W:.*]] = stablehlo.convert %arg1 : (tensor<9x4xf32>) -> tensor<9x4xbf16>
// CHECK-NEXT:    %[[P:.*]] = stablehlo.dot_general %arg0, %[[W]], contracting_dims = [1] x [1]
// CHECK-NEXT:    return %[[P]]
func.func public @converted(%x: tensor<2x4xbf16>, %w: tensor<9x4xf32>) -> tensor<2x9xbf16> {
  %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<9x4xf32>) -> tensor<4x9xf32>
  %1 = stablehlo.convert %0 : (tensor<4x9xf32>) -> tensor<4x9xbf16>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [1] x [0] : (tensor<2x4xbf16>, tensor<4x9xbf16>) -> tensor<2x9xbf16>
  return %2 : tensor<2x9xbf16>
}

// A result, and what it is converted to; precisions go with their operands.
// CHECK-LABEL: func.func public @result
// CHECK-NEXT:    %[[P:.*]] = stablehlo.dot_general %arg1, %arg0, contracting_dims = [0] x [0], precision = [HIGHEST, DEFAULT]
// CHECK-SAME:      -> tensor<9x4xbf16>
// CHECK-NEXT:    %[[C:.*]] = stablehlo.convert %[[P]]
// CHECK-NEXT:    return %[[C]] : tensor<9x4xf32>
func.func public @result(%x: tensor<2x4xbf16>, %g: tensor<2x9xbf16>) -> tensor<9x4xf32> {
  %0 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0], precision = [DEFAULT, HIGHEST] : (tensor<2x4xbf16>, tensor<2x9xbf16>) -> tensor<4x9xbf16>
  %1 = stablehlo.convert %0 : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<4x9xf32>) -> tensor<9x4xf32>
  return %2 : tensor<9x4xf32>
}

// Batches stay in front.
// CHECK-LABEL: func.func public @batches
// CHECK-NEXT:    %[[P:.*]] = stablehlo.dot_general %arg1, %arg0, batching_dims = [0] x [2], contracting_dims = [2] x [1]
// CHECK-NEXT:    return %[[P]] : tensor<3x5x2xf32>
func.func public @batches(%x: tensor<2x4x3xf32>, %y: tensor<3x5x4xf32>) -> tensor<3x5x2xf32> {
  %0 = stablehlo.transpose %x, dims = [2, 0, 1] : (tensor<2x4x3xf32>) -> tensor<3x2x4xf32>
  %1 = stablehlo.dot_general %0, %y, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<3x2x4xf32>, tensor<3x5x4xf32>) -> tensor<3x2x5xf32>
  %2 = stablehlo.transpose %1, dims = [0, 2, 1] : (tensor<3x2x5xf32>) -> tensor<3x5x2xf32>
  return %2 : tensor<3x5x2xf32>
}

// Transposes of transposes.
// CHECK-LABEL: func.func public @merged
// CHECK-NEXT:    %[[T:.*]] = stablehlo.transpose %arg0, dims = [2, 0, 1]
// CHECK-NEXT:    return %[[T]], %arg0
func.func public @merged(%x: tensor<2x3x4xf32>) -> (tensor<4x2x3xf32>, tensor<2x3x4xf32>) {
  %0 = stablehlo.transpose %x, dims = [1, 2, 0] : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
  %1 = stablehlo.transpose %0, dims = [1, 2, 0] : (tensor<3x4x2xf32>) -> tensor<4x2x3xf32>
  %2 = stablehlo.transpose %1, dims = [1, 2, 0] : (tensor<4x2x3xf32>) -> tensor<2x3x4xf32>
  return %1, %2 : tensor<4x2x3xf32>, tensor<2x3x4xf32>
}
